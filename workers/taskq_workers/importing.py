"""Whether this is a child process that imports the code of its tasks: no worker may start there.

A script that starts a worker as it is imported would start another one in each of its children,
whose children do the same, without an end.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_importing: ContextVar[bool] = ContextVar("taskq_importing", default=False)


@contextmanager
def importing() -> Iterator[None]:
    """Refuse workers within; for a child process, around what runs the user's modules."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def refuse_while_importing() -> None:
    """Let no worker start in a child process that is importing.

    Raises:
        UsageError: it is.
    """
    if _importing.get():
        raise UsageError(
            "a worker is started as the module is imported, which each child process of "
            'runs_in="process" does: put it under if __name__ == "__main__":'
        )
