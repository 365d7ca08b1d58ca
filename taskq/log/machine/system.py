"""Chooses the system's calls: here, and nowhere else in the log, systems are told apart."""

import sys

if sys.platform == "win32":
    from taskq.log.machine import windows as system
else:
    from taskq.log.machine import posix as system

__all__ = ["system"]
