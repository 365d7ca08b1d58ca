"""Under the writer lock a request becomes records, and the same change of the folds.

Begin with ``operations``, the one table from Op to function. Each decider gets the ``batch`` and
the deciders below it. May import state, requests and folders below them.
"""
