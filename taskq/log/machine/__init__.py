"""The log's access to the operating system: only this folder knows POSIX.

Begin with ``ports``: the rooms above take a ``Disk``, a ``Clock`` and ``Peers``, and tests hand in
simulated ones. Another system is one more file here. May import the core alone.
"""
