"""Records in, state out.

Begin with ``fold``: it walks frames and calls ``apply_*`` of the core. ``facets`` are the folds
that this process needs, ``snapshot`` saves them, ``job_history`` is the fold of a single job. May
import journal and folders below it.
"""
