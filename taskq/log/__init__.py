"""The log: the only part of taskq that touches the disk.

Begin with ``requests``. A request goes through ``store`` to ``commit``; ``decide`` turns it into
records. ``journal`` appends the records, and ``state`` folds them.
"""
