"""The log: the only part of taskq that touches the disk.

Begin with ``requests``, what callers hand in, and ``runs``, plain jobs that are handed in together.
A request goes through ``store`` to ``commit``, ``decide`` makes records of it, which ``journal``
appends and ``state`` folds.
"""
