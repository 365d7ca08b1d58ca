"""Write the golden logs: ``python -m tests.log.golden.write`` makes the missing ones.

A log is never made anew: it stands for logs of users. A new format gets another name here. ``python
-m tests.log.golden.write NAME DIRECTORY`` keeps a log that an older version wrote.
"""

import json
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from taskq.core.flows import FlowPart
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import SECOND_NS, Extras
from taskq.core.records import Cause, Kind
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.read.reader import LogReader
from taskq.log.read.selection import waiting_job
from taskq.log.requests import Edit, EnqueueSpec, Op
from taskq.testing.sandbox import FakeClock
from tests.log.world import PATH, Process, World, fill_segment, keeping, tend

HERE: Final = Path(__file__).parent
EXPECTED: Final = "expected.json"
_MAIL: Final = EnqueueSpec("mail", "mail.send", 7, 2)
_PLAIN: Final = EnqueueSpec(task="plain.run")


def said(path: Path, seconds: float) -> dict[str, Any]:
    with LogReader.open(str(path), FakeClock(seconds)) as reader:
        queues = [
            [queue.queue, queue.scheduled, queue.ready, queue.running, queue.succeeded, queue.dead,
             queue.cancelled, queue.expired, queue.paused]
            for queue in reader.stats().queues
        ]  # fmt: skip
        views = reader.jobs(None, None, None, 1_000)
        jobs = [
            [job.lsn, job.state.name, job.queue, job.task, job.priority, job.attempt,
             job.payload.hex()[:40], (job.key or b"").hex(), job.headers, job.reason]
            for job in views
        ]  # fmt: skip
        steps = {
            str(job.lsn): [[step.title, step.form, step.attempt, (step.value or b"").decode()]
                           for step in reader.steps(job.lsn)]
            for job in views
        }  # fmt: skip
        waits = reader._read(lambda _, facets, __: facets.need_agenda().steps.count_waits())
    known = {"seconds": seconds, "queues": queues, "jobs": sorted(jobs)}
    return known | {"steps": steps, "waits": waits} if any(steps.values()) else known


def _plain(process: Process) -> None:
    extras = Extras(headers={"kind": "golden"}, key=b"k", until_settled=True)
    process.enqueue(b"keyed", extras, _MAIL)
    process.enqueue(b"late", Extras(expires_ns=SECOND_NS), _MAIL)
    process.enqueue(b"delayed", Extras(due_ns=10**15), _MAIL)
    for number in range(8):
        process.enqueue(b"%d" % number, spec=_PLAIN)
    first, *_ = process.claim(1)
    process.settle(first, body=b"done")
    succeeded, retried, dead, released, _ = process.claim(5)
    process.settle(succeeded)
    process.settle(retried, Kind.RETRIED, body=b"again", delay_ns=10**15)
    process.settle(dead, Kind.DEAD, body=b"no", cause=Cause.REJECTED)
    process.settle(released, Kind.RELEASED, cause=Cause.DRAIN)
    process.ask(Op.CANCEL, process.enqueue(b"cancelled", spec=_PLAIN))
    process.ask(Op.PAUSE, "mail")


def _rested(process: Process) -> None:
    _plain(process)
    process.rest()
    process.claim(2)


def _edited(process: Process) -> None:
    _plain(process)
    job = process.enqueue(b"moved", Extras(key=b"m"), _PLAIN)
    item = waiting_job(process.committer.sight, job)
    process.ask(Op.EDIT, Edit(item, priority=9, queue=b"mail"))


def _compacted(process: Process) -> None:
    """Jobs that were written again, tallies, and what is left of segments that went."""
    _plain(process)
    for _ in range(3):
        fill_segment(process)
    tend(process)


def _stepped(process: Process) -> None:
    """Jobs with steps, of which one waits for a signal, one for its children and one for a time."""
    for number in range(4):
        process.enqueue(b"%d" % number, spec=_PLAIN)
    waits, calls, sleeps, ends = process.claim(4)
    for delivery in (waits, calls, sleeps, ends):
        process.ask(Op.STEP, NewStep(delivery, Form.STEP, "charge", 1, b'"receipt"', 0, SECOND_NS))
    process.ask(Op.SIGNAL, NewSignal(waits.job, "paid", b"5", "once"))
    process.ask(Op.SIGNAL, NewSignal(waits.job, "other", b"6"))
    process.ask(Op.STEP, NewStep(waits, Form.EVENT, "paid", 1))
    items = ((_PLAIN, b"child", Extras(flow=FlowPart(parent=calls.job))),)
    called = process.ask(Op.STEP, NewStep(calls, Form.CALL, "call", 1, items=items))
    for delivery, wait in (
        (waits, Wait(Form.EVENT, "paid", 2)),
        (calls, Wait(Form.CALL, "call", 1, 0, called.first, called.jobs)),
        (sleeps, Wait(Form.SLEEP, "sleep", 1, 10**16)),
    ):
        process.settle(delivery, Kind.RELEASED, body=pack_waits([wait]), cause=Cause.WAITS)
    process.settle(ends, body=b"7")


def _carried_steps(process: Process) -> None:
    _stepped(process)
    for _ in range(3):
        fill_segment(process)
    tend(process)


LOGS: Final[dict[str, Callable[[Process], None]]] = {
    "plain": _plain, "sync-points": _rested, "edits": _edited, "compacted": _compacted,
    "steps": _stepped, "carried-steps": _carried_steps,
}  # fmt: skip


def _pack(name: str, directory: Path, seconds: float) -> None:
    expected = said(directory, seconds)
    with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(directory.rglob("*")):
            kept = path.name == "taskq.json" or path.suffix in {".log", ".floor", ".idx"}
            if path.is_file() and kept:
                target.write(path, path.relative_to(directory))
        target.writestr(EXPECTED, json.dumps(expected, indent=1))


def world_of(name: str) -> World:
    world = World(config=keeping(keep_bytes=1, keep_seconds=None, min_free_bytes=0))
    process = world.process()
    LOGS[name](process)
    process.sync()
    return world


def _make(name: str, directory: Path) -> None:
    world = world_of(name)
    for path in world.machine.paths():
        target = directory / path.removeprefix(f"{PATH}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(world.machine.content(path))
    _pack(name, directory, world.clock.wall_ns() / SECOND_NS)


def _main() -> None:
    if sys.argv[1:]:
        _pack(sys.argv[1], Path(sys.argv[2]), time.time())
        return
    import tempfile  # noqa: PLC0415 - only whoever writes them

    for name in LOGS:
        if not (HERE / f"{name}.zip").exists():
            with tempfile.TemporaryDirectory() as directory:
                _make(name, Path(directory))


if __name__ == "__main__":
    _main()
