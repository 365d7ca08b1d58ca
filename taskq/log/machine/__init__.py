"""The log's access to the operating system: only this folder has code for certain systems.

Begin with ``ports``: other folders take a ``Disk``, a ``Clock`` and ``Peers``, and tests pass
simulated ones. ``posix`` and ``windows`` have the same names. May import only the core.
"""
