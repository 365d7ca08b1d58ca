"""Keeping the log in order while it is used, a millisecond at a time.

Begin with ``upkeep``, the part of the one process that does it: compaction, snapshots, retention.
``repair`` and ``health`` are for people. May import commit and what stands below it.
"""
