"""A call of a task as bytes: checked, encoded and read back. No disk.

Begin with ``call``; ``signature`` and ``arguments`` check and encode, ``ports`` says what calls,
handles and flows ask of a task and its app. May import the log's words and the core.
"""
