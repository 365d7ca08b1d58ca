"""A call of a task as bytes: checked, encoded and read back. No disk.

Begin with ``call``; ``signature`` and ``arguments`` check and encode. The package may import the
log's types and the core.
"""
