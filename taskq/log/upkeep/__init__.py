"""Keep the log in order while it is in use, one millisecond at a time.

Begin with ``upkeep``, the work of one process: compaction, snapshots, retention. ``backup`` and
``health`` are for people. May import commit and folders below it.
"""
