"""Fold the log into what it comes to: ``apply_*`` and ``take``, and no object for a job.

Begin with ``agenda`` (what each record does), then ``queues`` and ``lanes`` (ready jobs) and
``taking`` (which is next). ``freeze`` turns folds into columns and back. May import the files of
the core beside it, but not ``why`` and ``retry``.
"""
