"""Under the writer lock a request becomes records, and the same change of the folds.

Begin with ``operations``, the one table from Op to function; each decider gets the ``batch`` and
those below it. May import state, requests and what stands below them.
"""
