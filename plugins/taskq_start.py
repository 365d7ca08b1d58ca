"""Entry point of the ``taskq`` command: it checks that the package taskq is ours.

It lies beside that package, so that it exists when another package of the name hides ours.
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
    """Run the command, or say in a line that another package is called taskq, too.

    Until its code is imported, Ctrl-C ends the process at once and prints nothing.
    """
    gc.set_threshold(_LOADING_THRESHOLD)
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import taskq  # noqa: PLC0415 - it may be anybody's

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
        # Here, as no garbage is looked for meanwhile.
        import taskq_workers.command  # noqa: F401, PLC0415 - as below
    from taskq.cli.main import main  # noqa: PLC0415 - only now is it known to be ours

    return partial(main, prog_name="taskq")
