"""Commands that messages tell people to type: whole, so that they can be copied."""

from __future__ import annotations

from typing import Final

#: Stands for the app, which whoever prints a hint may not know.
WORKER: Final = ("worker", "MODULE:APP")


def command(directory: str, *words: str) -> str:
    """``taskq why abcd-7 -d '/my data'``: a command line for the log in this directory.

    Args:
        directory: of the log, as an absolute path, since nobody knows where it is typed.
        words: of the command.
    """
    import shlex  # noqa: PLC0415 - only errors need it

    return shlex.join(["taskq", *words, "-d", directory])
