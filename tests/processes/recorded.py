"""Every change that a real process made to its files, in order, and its state after a power cut.

``recorder.c`` notes the system calls of a program: of the engine, of Python and of the C library.
``replayed`` does the same to a simulated machine, which can lose its power after any of them.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from taskq.log.machine.access import make_directory
from tests.log.world import PATH
from tests.machine.crashable import CrashableDisk, Machine, parent
from tests.processes.harness import SCRIPTS, preloaded

#: The file of a program's answers; no part of its log.
ANSWERS: Final = PATH + ".answers"


class Call(NamedTuple):
    operation: str
    path: str
    offset: int
    #: the size of a cut or an allocation; for a created file, whether it is one
    size: int
    #: the written bytes, or the second path
    data: bytes


@functools.cache
def recorder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return preloaded(folder, "recorder.c")


def record(folder: Path, script: str, *arguments: object) -> list[Call]:
    notes, data = folder / "notes", Path(f"{folder}{PATH}")
    data.parent.mkdir()
    record = {"TASKQ_RECORD": str(notes), "TASKQ_RECORD_UNDER": str(data.parent)}
    subprocess.run(
        [sys.executable, SCRIPTS / script, data, *map(str, arguments), f"{data}.answers"],
        env={**os.environ, **record, "LD_PRELOAD": str(recorder())},
        check=True,
    )
    return list(_calls(notes.read_bytes(), os.fsencode(folder)))


def _calls(notes: bytes, folder: bytes) -> Iterable[Call]:
    at = 0
    while at < len(notes):
        head_end = notes.index(b"\n", at)
        operation, *numbers = notes[at:head_end].split()
        offset, size, path_size, data_size = map(int, numbers)
        path_end = head_end + 1 + path_size
        at = path_end + data_size
        path = notes[head_end + 1 : path_end].removeprefix(folder).decode()
        content = notes[path_end:at]
        if operation in {b"rename", b"link"}:
            content = content.removeprefix(folder)
        yield Call(operation.decode(), path, offset, size, content)


def replayed(calls: Iterable[Call], seed: int = 0) -> Machine:
    machine = Machine(seed)
    disk = CrashableDisk(machine)
    disk.make_directory(parent(PATH))
    disk.sync_directory("/")
    for call in calls:
        _do(disk, call)
    return machine


def _do(disk: CrashableDisk, call: Call) -> None:
    operation, path = call.operation, call.path
    target = call.data.decode(errors="replace")
    match operation:
        case "make_directory" | "remove":
            getattr(disk, operation)(path)
        case "rename" | "link":
            getattr(disk, operation)(path, target)
        case "sync" if disk.machine.find(path) in disk.machine._directories:
            disk.sync_directory(path)
        case _ if path.endswith((".pipe", " (deleted)")):
            pass  # no file, or an unreachable one
        case _:
            descriptor = disk.open(path, create=operation in {"create", "empty"})
            _do_to_file(disk, descriptor, call)
            disk.close(descriptor)


def _do_to_file(disk: CrashableDisk, descriptor: int, call: Call) -> None:
    match call.operation:
        case "write":
            disk.write(descriptor, call.data, call.offset)
        case "truncate" | "allocate":
            getattr(disk, call.operation)(descriptor, call.size)
        case "empty":
            disk.truncate(descriptor, 0)
        case "sync":
            disk.sync(descriptor)
        case other:
            assert other == "create", other


def written_out(machine: Machine, folder: Path) -> Path:
    for path in machine.paths():
        if path.startswith(PATH):
            target = Path(f"{folder}{path}")
            make_directory(str(target.parent))
            target.write_bytes(machine.content(path))
    return Path(f"{folder}{PATH}")
