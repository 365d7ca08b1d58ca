"""Keys as a terminal sends them, one by one and without an echo."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_BYTES_MAX: Final = 256
_NAMES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right",
    "\x1bOC": "right", "\x1b[D": "left", "\x1bOD": "left", "\x1b": "escape", "\r": "enter",
    "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x03": "q", "\x04": "q",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


class Keys:
    """What is typed at a descriptor that is a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> list[str]:
        """Return the keys that are pressed, as soon as there is one; [] when none was for so long.

        Letters are themselves; others are "up", "enter", "escape", …; those of no name are left
        out. At the end of the input "q".
        """
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        data = os.read(self._descriptor, _BYTES_MAX).decode("utf-8", "ignore")
        if not data:
            return ["q"]
        names = (_NAMES.get(key, key) for key in _KEY.findall(data))
        return [key for key in names if key.isprintable()]


@contextmanager
def keys_of(descriptor: int) -> Iterator[Keys]:
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[3] &= ~termios.ISIG  # Ctrl-C is a key, too, so that the screen is left in order
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
