"""Whether a log is in a state to work with, and whether somebody works: looks at files alone.

Before a start (``taskq check``), and while there should be a worker (``taskq health``).
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskq.core.durations import spoken
from taskq.core.errors import LogError, worker_command
from taskq.core.model import SECOND_NS
from taskq.core.values import dataclass
from taskq.log.commit.room import files_left
from taskq.log.config import MIN_FREE_BYTES, TINY_DISK_PARTS, LogConfig
from taskq.log.journal.lock import process_state
from taskq.log.journal.logtime import STEP_NS
from taskq.log.journal.recovery import is_marked_failed
from taskq.log.machine.access import denied, exposures, refuse_foreign, whose
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.machine.owners import owner_views
from taskq.log.read.reader import FAILED, LogReader
from taskq.log.segments.identity import FILE, check_writable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from taskq.core.views import OwnerView
    from taskq.log.machine.ports import Disk

_STOPPED: Final = "stopped"
#: A clock that is behind this was never set.
_YEAR_2024_NS: Final = 1_704_067_200 * SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    #: what was found, and what to do where it is not well
    detail: str
    #: whether it counts for liveness too: only then would a restart help, or do harm
    vital: bool = False


def check_health(
    path: Path, config: LogConfig | None = None, *, with_jobs: bool = True
) -> list[Check]:
    """Look at a log's directory and at the processes that have it open; takes milliseconds.

    Args:
        path: the directory.
        config: its ``min_free``, if that was set; None for the default.
        with_jobs: whether to look at the jobs that wait, too. What was written since the newest
            snapshot has to be read for that: a quarter of a second after 8 MiB.
    """
    disk = LocalDisk()
    states = {
        owner: process_state(owner.pid) for owner in owner_views(path / "owners", {}) if owner.alive
    }
    # A worker that is stopped works on nothing, whoever else has the log open.
    awake = [owner for owner, state in states.items() if not state.startswith(_STOPPED)]
    checks = [
        _readable(path),
        _unfailed(disk, path),
        _process(path, states, awake),
        _worker(awake),
    ]
    if with_jobs and checks[0].ok:
        checks.append(_jobs(path))
    return [*checks, _room(disk, path, config or LogConfig()), _access(path)]


def _readable(path: Path) -> Check:
    try:
        with LogReader.open(str(path)) as reader:
            detail = f"log {reader.tag} reads up to lsn {reader.journal.next_lsn - 1}"
            if reader.journal.lost:
                # No restart brings it back: whoever minds liveness only need not know.
                detail = "; ".join(
                    loss.explain(reader.journal.path, reader.resend_command)
                    for loss in reader.journal.lost
                )
                return Check(name="log", ok=False, detail=detail)
    except LogError as error:
        return Check(name="log", ok=False, vital=True, detail=str(error))
    return Check(name="log", ok=True, vital=True, detail=detail)


def _jobs(path: Path) -> Check:
    try:
        with LogReader.open(str(path)) as reader:
            stands = reader.standing()
    except LogError as error:
        return Check(name="jobs", ok=False, detail=str(error))
    bad = [text for level, text in stands.remarks if level == "bad"]
    return Check(name="jobs", ok=not bad, detail=". ".join(bad) or stands.text)


def _unfailed(disk: Disk, path: Path) -> Check:
    if not is_marked_failed(disk, str(path)):
        return Check(name="writes", ok=True, vital=True, detail="no failed write is marked")
    return Check(name="writes", ok=False, vital=True, detail=FAILED)


def _process(path: Path, owners: Iterable[OwnerView], awake: list[OwnerView]) -> Check:
    """Look for any process: a worker that drains claims nothing, and is well all the same."""
    if awake:
        pids = ", ".join(map(str, sorted({owner.pid for owner in awake})))
        return Check(name="process", ok=True, vital=True, detail=f"the log is open in {pids}")
    stopped = {owner.pid for owner in owners}
    if stopped:
        pids = ", ".join(map(str, sorted(stopped)))
        detail = f"stopped by a signal: {pids}. Let it go on with kill -CONT"
        return Check(name="process", ok=False, vital=True, detail=detail)
    start = worker_command(str(path.absolute()))
    detail = f"no process has the log open; start one with: {start}"
    return Check(name="process", ok=False, vital=True, detail=detail)


def _worker(owners: Iterable[OwnerView]) -> Check:
    serving = [owner for owner in owners if owner.serves]
    if not serving:
        return Check(
            name="worker",
            ok=False,
            detail="no worker claims jobs: none runs, or each is starting or draining",
        )
    slots = sum(serves.slots for owner in serving for serves in owner.serves)
    workers = f"{len(serving)} worker process{'' if len(serving) == 1 else 'es'}"
    return Check(name="worker", ok=True, detail=f"{workers}, {slots} jobs at a time")


def _access(path: Path) -> Check:
    """Tell who may read the log; fails nothing, as in a container the others are nobody."""
    try:
        detail = f"nobody but {whose(str(path))} can use its files"
    except OSError as error:
        detail = f"not to be seen ({error.strerror})"
    return Check(name="access", ok=True, detail="; ".join(exposures(str(path))) or detail)


def _room(disk: Disk, path: Path, config: LogConfig) -> Check:
    try:
        free, limit = disk.free_bytes(str(path)), config.min_free_bytes
        if limit is None:
            limit = min(MIN_FREE_BYTES, disk.total_bytes(str(path)) // TINY_DISK_PARTS)
        files = files_left(disk, str(path)) if limit else ""
    except OSError as error:
        # Who cannot be asked refuses nothing.
        return Check(name="disk", ok=True, detail=f"the disk does not tell ({error.strerror})")
    detail = f"{free:,} bytes are free, {limit:,} must stay so"
    if free < limit or files:
        detail = f"{files or detail}: enqueues are refused, make room"
        return Check(name="disk", ok=False, detail=detail)
    return Check(name="disk", ok=True, detail=detail)


# Before the start: ``taskq check``.


def check_start(path: Path, config: LogConfig) -> list[Check]:
    """Look whether a process could begin to work with the log in a directory, or make one there.

    Args:
        path: the directory, which need not be there.
        config: what is set for the log.
    """
    disk = LocalDisk()
    if not (path / FILE).is_file():
        return [_makeable(path), _clock(0)]
    readable = _readable(path)
    checks = [_writable(disk, path), readable, _unfailed(disk, path), _room(disk, path, config)]
    last_ns = 0
    if readable.vital and readable.ok:
        with LogReader.open(str(path)) as reader:
            last_ns = reader.journal.time_ns
    return [*checks, _clock(last_ns), _access(path)]


def _makeable(path: Path) -> Check:
    """Look whether the first process could make a log there."""
    near = path.absolute()
    while not near.exists() and near != near.parent:
        near = near.parent
    detail = f"{path} is made at the start"
    if near == path.absolute():
        try:
            refuse_foreign(near)
        except (LogError, OSError) as error:
            return Check(name="directory", ok=False, detail=str(error))
        detail = f"{path} holds no log yet: one is made at the start"
    if not os.access(near, os.R_OK | os.W_OK | os.X_OK):
        return Check(name="directory", ok=False, detail=denied(str(near)))
    return Check(name="directory", ok=True, detail=detail)


def _writable(disk: Disk, path: Path) -> Check:
    """Look whether this user may write where processes write, and the log is no hub's copy."""
    try:
        check_writable(disk, str(path))
    except LogError as error:
        return Check(name="directory", ok=False, detail=str(error))
    for place in (path, path / "log", *sorted((path / "log").glob("*.log"))[-1:]):
        if not os.access(place, os.R_OK | os.W_OK):
            return Check(name="directory", ok=False, detail=denied(str(place)))
    return Check(name="directory", ok=True, detail=f"{path} can be read and written")


def _clock(last_ns: int) -> Check:
    """Look whether the machine knows the time; ``last_ns`` is that of the last frame, or 0."""
    now_ns = SystemClock().wall_ns()
    now = f"{datetime.fromtimestamp(now_ns / SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    if now_ns < last_ns - STEP_NS:
        behind = spoken(last_ns - now_ns)
        detail = f"it is {now}, {behind} before the log's last record: set the clock"
        return Check(name="clock", ok=False, detail=detail)
    if now_ns < _YEAR_2024_NS:
        detail = f"it is {now}: set the clock, or what is due at a time comes too late"
        return Check(name="clock", ok=False, detail=detail)
    return Check(name="clock", ok=True, detail=f"it is {now}")
