"""Records in, state out.

Begin with ``fold``: it walks frames and calls ``apply_*`` of the core. ``facets`` are the folds
that this process needs, ``snapshot`` saves them, ``story`` is the fold of a single job. May import
journal and what stands below it.
"""
