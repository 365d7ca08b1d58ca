"""Entry point of the ``taskq`` command: check that the package taskq is ours, then run it.

The module is outside that package, so it can be imported even if another taskq hides ours.
"""

from __future__ import annotations

import gc
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Garbage collection while a command loads takes a tenth of a worker's start, and finds nothing:
#: loaded modules stay.
_LOADING_THRESHOLD = 100_000
_GARBAGE_THRESHOLD = 10_000


def main() -> None:
    """Run the command, or print one line if another package is called taskq, too.

    While the command's code loads, Ctrl-C ends the process at once and prints nothing.
    """
    gc.set_threshold(_LOADING_THRESHOLD)
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # a shell's background jobs ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import taskq  # noqa: PLC0415 - it may be another package

    if "TaskQ" not in getattr(taskq, "__all__", ()):
        where = getattr(taskq, "__file__", None) or ", ".join(getattr(taskq, "__path__", ()))
        sys.exit(
            f"taskq: {where} hides this taskq, and is another program of that name. Move it away "
            f"(pip uninstall taskq, if pip brought it), and install this one again"
        )
    run = _program(sys.argv[1:])
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _program(words: list[str]) -> Callable[[], object]:
    if words[:1] == ["worker"]:
        from taskq._lazy import import_without_tls  # noqa: PLC0415 - as below

        import_without_tls()
        # Imported here, while garbage collection is rare.
        import taskq_workers.command  # noqa: F401, PLC0415 - as below
    from taskq.cli.main import main  # noqa: PLC0415 - after the check

    return partial(main, prog_name="taskq")
