"""Health of a log and of its workers, from files alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

from taskq.core import durations, errors, model, views
from taskq.core.values import NamedTuple, dataclass
from taskq.log.commit.room import files_left
from taskq.log.config import MIN_FREE_BYTES, TINY_DISK_PARTS, LogConfig
from taskq.log.journal import journal, recovery
from taskq.log.journal.lock import process_state
from taskq.log.machine import access, owners, ports
from taskq.log.machine.disk import LocalDisk, SystemClock
from taskq.log.read.diagnosis import Standing
from taskq.log.read.reader import FAILED, LogReader
from taskq.log.segments.identity import FILE, check_writable

_STOPPED: Final = "stopped"
#: A clock before this moment was never set.
_YEAR_2024_NS: Final = 1_704_067_200 * model.SECOND_NS


#: (whether the check passed, a sentence about it)
Look: TypeAlias = tuple[bool, str]


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check."""

    name: str
    ok: bool
    #: the finding, with a remedy if the check failed
    detail: str
    #: whether it counts for liveness: if not, a restart would not help
    vital: bool = False


def check_health(
    path: Path, config: LogConfig | None = None, *, with_jobs: bool = True
) -> list[Check]:
    """Check a log's directory and the processes that have it open; takes milliseconds.

    It serves before a start (``taskq check``), and while a worker should run (``taskq health``).

    Args:
        path: the directory.
        config: options with its ``min_free``, if set; None for the default.
        with_jobs: whether to check waiting jobs, too. That reads all records since the newest
            snapshot: a quarter of a second for 8 MiB.
    """
    disk = LocalDisk()
    log = _look_at(path, with_jobs=with_jobs)
    if path.exists() and not path.is_dir():
        return [log.readable]
    if log.copy_of:
        return [log.readable, Check("copy", True, f"{log.copy_of}: ask for its health there")]
    states = {
        owner: process_state(owner.pid)
        for owner in owners.owner_views(path / "owners", {})
        if owner.alive
    }
    # A stopped worker does no work, even if other processes have the log open.
    awake = [owner for owner, state in states.items() if not state.startswith(_STOPPED)]
    stall_of = {owner.pid: owners.read_stall(path / "owners", owner.owner) for owner in awake}
    stalls = {pid: stall for pid, stall in stall_of.items() if stall is not None}
    checks = [
        log.readable,
        Check("writes", *_unfailed(disk, path), vital=True),
        Check("process", *_process(path, states, awake, stalls), vital=True),
        Check("worker", *_worker(awake, stalls)),
    ]
    if log.standing is not None:
        bad = [text for level, text in log.standing.remarks if level == "bad"]
        checks.append(Check("jobs", not bad, ". ".join(bad) or log.standing.text))
    room = Check("disk", *_room(disk, path, config or LogConfig()))
    return [*checks, room, Check("access", True, _access(path))]


class _Log(NamedTuple):
    """Result of one read of the log; ``time_ns`` is of its last frame, 0 if it is unreadable."""

    readable: Check
    copy_of: str = ""
    standing: Standing | None = None
    time_ns: int = 0


def _look_at(path: Path, *, with_jobs: bool) -> _Log:
    try:
        with LogReader.open(str(path)) as reader:
            journal, again, copy_of = reader.journal, reader.resend_command, reader.copy_of
            if journal.lost:
                # No restart brings the records back, so liveness is unaffected.
                losses = "; ".join(loss.explain(journal.path, again) for loss in journal.lost)
                return _Log(Check("log", False, losses), copy_of)
            which = f"{reader.lineage}{',' if reader.parents else ''}"
            detail = f"{which} reads up to lsn {journal.next_lsn - 1}"
            standing = reader.standing() if with_jobs and not copy_of else None
            readable = Check("log", True, detail, vital=True)
            return _Log(readable, copy_of, standing, journal.time_ns)
    except errors.LogError as error:
        return _Log(Check("log", False, str(error), vital=True))


def _unfailed(disk: ports.Disk, path: Path) -> Look:
    is_failed = recovery.is_marked_failed(disk, str(path))
    return not is_failed, FAILED if is_failed else "no failed write is marked"


def _process(
    path: Path,
    owners: Iterable[views.OwnerView],
    awake: list[views.OwnerView],
    stalls: dict[int, owners.Stall],
) -> Look:
    """Check for any process: a draining worker claims nothing, and is healthy."""
    stuck = [(pid, stall) for pid, stall in stalls.items() if stall.is_engine]
    if stuck:
        return False, _stalled(stuck)
    if awake:
        pids = ", ".join(map(str, sorted({owner.pid for owner in awake})))
        return True, f"the log is open in {pids}"
    stopped = {owner.pid for owner in owners}
    if stopped:
        pids = ", ".join(map(str, sorted(stopped)))
        return False, f"stopped by a signal: {pids}. Let it go on with kill -CONT"
    start = errors.worker_command(str(path.absolute()))
    return False, f"no process has the log open; start one with: {start}"


def _stalled(stalls: Iterable[tuple[int, owners.Stall]]) -> str:
    now_ns = SystemClock().wall_ns()
    return "; ".join(
        f"process {pid} stands still for {durations.spoken(max(now_ns - stall.since_ns, 0))}: "
        f"{stall.text}"
        for pid, stall in stalls
    )


def _worker(owners: Iterable[views.OwnerView], stalls: dict[int, owners.Stall]) -> Look:
    if stalls:
        return False, _stalled(stalls.items())
    serving = [owner for owner in owners if owner.serves]
    if not serving:
        return False, "no worker claims jobs: none runs, or each is starting or draining"
    slots = sum(serves.slots for owner in serving for serves in owner.serves)
    workers = f"{len(serving)} worker process{'' if len(serving) == 1 else 'es'}"
    return True, f"{workers}, {slots} jobs at a time"


def _access(path: Path) -> str:
    """Report the users who can read the log; never a failure, as a container has only one user."""
    try:
        detail = f"nobody but {access.users_text(str(path))} can use its files"
    except OSError as error:
        detail = f"not to be seen ({error.strerror})"
    return "; ".join(access.exposures(str(path))) or detail


def _room(disk: ports.Disk, path: Path, config: LogConfig) -> Look:
    try:
        free, limit = disk.free_bytes(str(path)), config.min_free_bytes
        if limit is None:
            limit = min(MIN_FREE_BYTES, disk.total_bytes(str(path)) // TINY_DISK_PARTS)
        files = files_left(disk, str(path)) if limit else ""
    except OSError as error:
        # A failed check refuses nothing.
        return True, f"the disk does not report it ({error.strerror})"
    detail = f"{free:,} bytes are free, {limit:,} must stay so"
    is_short = free < limit or bool(files)
    return (
        not is_short,
        f"{files or detail}: enqueues are refused, make room" if is_short else detail,
    )


# Before the start: ``taskq check``.


def check_start(path: Path, config: LogConfig) -> list[Check]:
    """Check whether a process could begin to work with the log in a directory, or make one.

    Args:
        path: the directory, which may be missing.
        config: options of the log.
    """
    disk = LocalDisk()
    if not (path / FILE).is_file():
        return [Check("directory", *_makeable(path)), Check("clock", *_clock(0))]
    log = _look_at(path, with_jobs=False)
    return [
        Check("directory", *_writable(disk, path)),
        log.readable,
        Check("writes", *_unfailed(disk, path), vital=True),
        Check("disk", *_room(disk, path, config)),
        Check("clock", *_clock(log.time_ns)),
        Check("access", True, _access(path)),
    ]


def _makeable(path: Path) -> Look:
    near = path.absolute()
    while not near.exists() and near != near.parent:
        near = near.parent
    detail = f"{path} is made at the start"
    if near == path.absolute():
        try:
            access.refuse_foreign(near)
        except errors.LogError as error:
            return False, str(error)
        except OSError as error:
            return False, str(errors.refusal(str(path), error))
        detail = f"{path} holds no log yet: one is made at the start"
    is_open = os.access(near, os.R_OK | os.W_OK | os.X_OK)
    return is_open, detail if is_open else access.denied(str(near))


def _writable(disk: ports.Disk, path: Path) -> Look:
    """Check whether this user may write the log's files, and the log is no hub's copy."""
    try:
        check_writable(disk, str(path))
    except errors.LogError as error:
        return False, str(error)
    for place in (path, path / "log", *sorted((path / "log").glob("*.log"))[-1:]):
        if not os.access(place, os.R_OK | os.W_OK):
            return False, access.denied(str(place))
    return True, f"{path} can be read and written"


def _clock(last_ns: int) -> Look:
    """Check the machine's clock; ``last_ns`` is the time of the last frame, or 0."""
    now_ns = SystemClock().wall_ns()
    now = f"it is {datetime.fromtimestamp(now_ns / model.SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    if now_ns < last_ns - journal.STEP_NS:
        lag = durations.spoken(last_ns - now_ns)
        return False, f"{now}, {lag} before the log's last record: set the clock"
    if now_ns < _YEAR_2024_NS:
        return False, f"{now}: set the clock, or what is due at a time comes too late"
    return True, now
