"""Files of a process for its peers: claims of its workers (``owners/<owner>.serves``), progress."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from taskq.core import errors, parsing, rates, views
from taskq.core.values import dataclass
from taskq.log.machine import access, peers, threads
from taskq.log.machine.access import replace_file
from taskq.log.machine.system import system


def limits_document(limits: Mapping[str, rates.Limit] | None) -> dict[str, list[object]]:
    """Return limits by task: scope, concurrency, count and nanoseconds of the rate."""
    return {
        task: [
            limit.scope,
            limit.concurrency,
            *((limit.rate.count, limit.rate.window_ns) if limit.rate else (0, 0)),
        ]
        for task, limit in (limits or {}).items()
    }


def limits_of_document(document: object) -> dict[str, rates.Limit] | None:
    limits: dict[str, rates.Limit] = {}
    for task, values in document.items() if isinstance(document, dict) else ():
        match values:
            case [str(scope), int(concurrency), int(count), int(window_ns)]:
                try:
                    rate = rates.Rate(count, window_ns) if count else None
                except errors.UsageError:
                    continue
                limits[task] = rates.Limit(concurrency=concurrency, rate=rate, scope=scope)
    return limits or None


_log: Final = threads.Reporter("taskq")
_BYTES_MAX: Final = 1024 * 1024


def publish(directory: Path, owner: int, servings: Iterable[views.Serving]) -> None:
    """Write the claims of an owner's workers; remove the file without workers.

    Raises nothing: if the disk refuses, only the answers of ``why`` are less complete.

    The file only explains to people why a job does not run. It is written when workers start, stop
    or hold jobs back, is not synced, and counts only while its owner lives.
    """
    document = [
        {
            "queues": _listed(serving.queues),
            "tasks": _listed(serving.tasks),
            "slots": serving.slots,
            "holds": [_reports(hold) for hold in serving.holds],
            "limits": limits_document(serving.limits),
            "stops": serving.stops,
        }
        for serving in servings
    ]
    _put(directory, owner, peers.SERVES, document, "what the workers here claim")


def _put(directory: Path, owner: int, suffix: str, document: list[Any], what: str) -> None:
    """Write a file of an owner, or remove it for an empty document; a refusal is logged."""
    target = directory / f"{owner:016x}{suffix}"
    try:
        if document:
            data = json.dumps(document).encode()
            replace_file(target, target.with_suffix(suffix + peers.NEW), data)
        else:
            system.remove(target)
    except OSError as error:
        _log.warning("%s: %s could not be written: %s", directory, what, error)


def _read(path: Path, bytes_max: int = _BYTES_MAX) -> object:
    """Return the document in a file of an owner; None if it cannot be read."""
    try:
        return parsing.parse_json(access.read_file(path, bytes_max))
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Stall:
    """Standstill of a process, with its reason.

    Attributes:
        text: the stalled part of the process.
        since_ns: wall time.
        is_engine: the storage thread is stalled, and a restart would help.
    """

    text: str
    since_ns: int
    is_engine: bool = False


def publish_stall(directory: Path, owner: int, stall: Stall | None) -> None:
    """Write the standstill of an owner's process, or remove the file; raises nothing.

    Do not call it on the storage thread, which may be at a standstill.
    """
    document = [] if stall is None else [stall.text, stall.since_ns, stall.is_engine]
    _put(directory, owner, peers.STALL, document, "a standstill")


def read_stall(directory: Path, owner: int) -> Stall | None:
    """Return the standstill of an owner's process; None without one, or if unknown."""
    match _read(directory / f"{owner:016x}{peers.STALL}"):
        case [str(text), int(since_ns), bool(is_engine)]:
            return Stall(text, since_ns, is_engine)
    return None


def read_servings(directory: Path, owner: int) -> tuple[views.Serving, ...]:
    """Return the claims of an owner's workers, as far as known; empty without workers.

    During a standstill the first one holds all jobs back.
    """
    servings, stall = _read_servings(directory, owner), read_stall(directory, owner)
    if stall is None or not servings:
        return servings
    hold = views.Hold(is_stuck=True, is_breaker=False, text=stall.text, since_ns=stall.since_ns)
    first = replace(servings[0], holds=(*servings[0].holds, hold))
    return (first, *servings[1:])


def _read_servings(directory: Path, owner: int) -> tuple[views.Serving, ...]:
    document = _read(directory / f"{owner:016x}{peers.SERVES}")
    rows = document if isinstance(document, list) else ()
    return tuple(_serving(row) for row in rows if isinstance(row, dict))


def _serving(document: dict[str, Any]) -> views.Serving:
    return views.Serving(
        queues=_names(document.get("queues")),
        tasks=_names(document.get("tasks")),
        slots=_number(document.get("slots")),
        holds=_holds(document.get("holds")),
        limits=limits_of_document(document.get("limits")),
        stops=_number(document.get("stops")),
    )


def _reports(hold: views.Hold) -> dict[str, Any]:
    return {
        "queues": _listed(hold.queues),
        "tasks": _listed(hold.tasks),
        "is_breaker": hold.is_breaker,
        "is_stuck": hold.is_stuck,
        "text": hold.text,
        "since_ns": hold.since_ns,
    }


def _holds(rows: object) -> tuple[views.Hold, ...]:
    if not isinstance(rows, list):
        return ()
    return tuple(_hold(row) for row in rows if isinstance(row, dict))


def _hold(document: dict[str, Any]) -> views.Hold:
    return views.Hold(
        queues=_names(document.get("queues")),
        tasks=_names(document.get("tasks")),
        is_breaker=document.get("is_breaker") is True,
        is_stuck=document.get("is_stuck") is True,
        text=str(document.get("text", "")),
        since_ns=_number(document.get("since_ns")),
    )


def _listed(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _names(value: object) -> frozenset[str] | None:
    return frozenset(map(str, value)) if isinstance(value, list) else None


def owner_views(directory: Path, running: Mapping[int, int]) -> list[views.OwnerView]:
    """Return every owner with a file here or a running job, the oldest first."""
    owners = {*peers.known_owners(directory), *running}
    views = [owner_view(directory, owner, running.get(owner, 0)) for owner in owners]
    return sorted(views, key=lambda view: (view.started_ns, view.owner))


def owner_view(directory: Path, owner: int, running: int = 0) -> views.OwnerView:
    return replace(
        owner_of(owner, peers.describe_owner(directory, owner)),
        alive=peers.owner_alive(directory, owner),
        running=running,
        serves=read_servings(directory, owner),
    )


def ask_to_stop(directory: Path, view: views.OwnerView) -> bool:
    """Ask a worker's process, or its guard, to end after its jobs; False if it is gone.

    A container may share the log and the host's name, and have pids of its own. So only a process
    with the owner's file open, or its parent, is asked. The pid in the file may be outdated, or
    anything that another user of the log wrote there.
    """
    path = directory / f"{view.owner:016x}.lock"
    target = next((serving.stops for serving in view.serves if serving.stops), 0)
    is_here = view.host == system.host_name() and system.has_open(view.pid, path)
    is_meant = target == view.pid or (target > 1 and system.is_parent(target, view.pid))
    return is_here and is_meant and system.ask_to_stop(target)


def owner_of(owner: int, description: bytes) -> views.OwnerView:
    return views.OwnerView(owner=owner, alive=False, **decode_description(description))


def decode_description(description: bytes) -> dict[str, Any]:
    try:
        values = parsing.parse_json(description)
    except ValueError:
        values = {}
    if not isinstance(values, dict):
        values = {}
    return {
        "pid": _number(values.get("pid")),
        "host": str(values.get("host", "")),
        "name": str(values.get("name", "")),
        "started_ns": _number(values.get("started_ns")),
        "version": str(values.get("version", "")),
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


#: Jobs of one process whose progress is kept, the latest first.
JOBS_MAX: Final = 4_096
#: Shortest time between two writes of the file.
PAUSE_SECONDS: Final = 0.1
#: Time without reports after which the writer's thread ends.
_IDLE_SECONDS: Final = 2.0
_BOARD_BYTES_MAX: Final = 8 * 1024 * 1024
_FIELDS: Final = 5


class ProgressBoard:
    """Progress of one process's jobs, written by a thread.

    The first report is written at once, the last at most ``PAUSE_SECONDS`` later.
    """

    def __init__(self, directory: Path, owner: int) -> None:
        self._path = directory / f"{owner:016x}{peers.PROGRESS}"
        self._guard = threading.Condition()
        self._ended = threading.Event()
        #: (job, token) -> the job's runner, and its last report
        self._reports: dict[tuple[int, int], tuple[weakref.ref[Any], views.ProgressView]] = {}
        self._has_news = False
        self._thread: threading.Thread | None = None

    def report(self, runner: object, job: int, token: int, view: views.ProgressView) -> None:
        """Keep a job's report until ``runner`` is gone. Any thread may call; returns at once."""
        with self._guard:
            if self._ended.is_set():
                return
            key = job, token
            if key not in self._reports and len(self._reports) >= JOBS_MAX:
                self._forget_gone()
            self._reports[key] = weakref.ref(runner), view
            if self._has_news:
                return
            if self._thread is None:
                try:
                    self._thread = threads.start_thread(self._run, "taskq-progress")
                except errors.LogError:  # the next report tries again
                    return
            self._has_news = True
            self._guard.notify()

    def close(self) -> None:
        """Stop writing; the owner removes the file. May be called twice."""
        with self._guard:
            self._ended.set()
            self._guard.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _forget_gone(self) -> None:
        for key in [key for key, (runner, _) in self._reports.items() if runner() is None]:
            del self._reports[key]
        while len(self._reports) >= JOBS_MAX:
            del self._reports[next(iter(self._reports))]

    def _run(self) -> None:
        while True:
            with self._guard:
                while not self._has_news:
                    if self._ended.is_set() or not self._guard.wait(_IDLE_SECONDS):
                        self._thread = None
                        return
                self._has_news = False
                self._forget_gone()
                rows = [[*key, *view] for key, (_, view) in self._reports.items()]
            # Readers see the last report that the disk accepted.
            with contextlib.suppress(OSError):
                self._write(rows)
            self._ended.wait(PAUSE_SECONDS)

    def _write(self, rows: list[list[object]]) -> None:
        temporary = self._path.with_suffix(peers.PROGRESS + peers.NEW)
        replace_file(self._path, temporary, json.dumps(rows).encode())


def read_progress(path: Path, job: int, token: int) -> views.ProgressView | None:
    rows = _read(path, _BOARD_BYTES_MAX)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == _FIELDS and row[:2] == [job, token]:
            return _progress_view(*row[2:])
    return None


def _progress_view(fraction: object, message: object, at_ns: object) -> views.ProgressView | None:
    if isinstance(fraction, int | float) and isinstance(message, str) and isinstance(at_ns, int):
        return views.ProgressView(float(fraction), message, at_ns)
    return None
