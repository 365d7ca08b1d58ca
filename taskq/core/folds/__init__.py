"""State computed from the log's records: ``apply_*`` and ``take``, without an object per job.

Begin with ``agenda`` (what each record changes), then ``lanes`` (ready jobs and limits) and
``claims`` (which job is next). ``freeze`` turns folds into columns and back. These files may import
the rest of the core, but not ``why`` and ``retry``.
"""
