"""The descriptors 0 to 2 of a process that was started without some of them (``>&-``, a service).

The next files that it opens get these numbers: a segment of the log would be what libraries write
their complaints to, and a child process would print into the channel that its jobs come by.
"""

from __future__ import annotations

import os
from typing import Final

_STANDARD: Final = (0, 1, 2)


def fill_standard() -> None:
    """Let those that are closed lead nowhere, here and in child processes."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere == number:
                os.set_inheritable(number, True)
            else:
                os.dup2(nowhere, number)
                os.close(nowhere)
