"""Calls of tasks: checked, encoded to bytes and decoded. No disk access.

Begin with ``call``; ``signature`` and ``arguments`` check and encode. The package may import the
log's types and the core.
"""
