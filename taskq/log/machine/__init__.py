"""The log's access to the operating system: only this folder knows systems.

Begin with ``ports``: the rooms above take a ``Disk``, a ``Clock`` and ``Peers``, and tests hand in
simulated ones. ``posix`` and ``windows`` have the same names. May import the core alone.
"""
