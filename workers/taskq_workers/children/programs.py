"""Start this program again, as a child for jobs or as another worker."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from multiprocessing import spawn
from typing import Any, Final

from taskq.values import dataclass
from taskq_workers.runs import system
from taskq_workers.runs.guards import MARK

#: Code of a started interpreter; it uses the worker's ``sys.path``.
_CODE: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[4]); "
    "from taskq_workers.children.inside import main; main(*map(int, sys.argv[1:4]))"
)


def is_frozen() -> bool:
    return bool(getattr(sys, "frozen", False))


def interpreter(*arguments: str) -> list[Any]:
    # multiprocessing's private function is the only complete source of these options.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [spawn.get_executable(), *options, *arguments]


def start_child(work: socket.socket, life: int, *, from_main: bool) -> subprocess.Popen[bytes]:
    """Start a child with the socket for jobs and the pipe that the worker keeps open until it ends.

    A frozen program has no interpreter: its executable starts from the beginning. Its children
    start like children of multiprocessing, by ``multiprocessing.freeze_support()``.
    """
    if not is_frozen():
        path = json.dumps(sys.path, default=str)
        numbers = map(str, (work.fileno(), life, os.getpid()))
        command = interpreter("-c", _CODE, *numbers, path)
        return system.start(command, work, life, ends_with_us=True)
    message, ours = os.pipe()
    with open(ours, "wb") as pipe:  # noqa: PTH123 - a descriptor; its buffer holds the few bytes
        # The pickles that multiprocessing expects: an empty dict, then a process with its method.
        pipe.write(pickle.dumps({}) + pickle.dumps(_Process(work.fileno(), life, os.getpid())))
    environment = {**os.environ, MARK: "main" if from_main else "modules"}
    return system.start_frozen(message, work, life, environment)


def worker_command(*arguments: str) -> list[Any]:
    start = [sys.executable] if is_frozen() else interpreter("-m", "taskq")
    return [*start, "worker", *arguments]


@dataclass(frozen=True, slots=True)
class _Process:
    """Replaces multiprocessing's process object."""

    work: int
    life: int
    parent: int

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        """Run jobs; called by multiprocessing in the started program."""
        del parent_sentinel
        from taskq_workers.children.inside import main  # noqa: PLC0415 - in the child alone

        main(self.work, self.life, self.parent)
        return 0
