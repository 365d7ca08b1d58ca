"""Chooses the calls of this system: the log's only branch on the operating system."""

import sys

if sys.platform == "win32":
    from taskq.log.machine import windows as system
else:
    from taskq.log.machine import posix as system

__all__ = ["system"]
