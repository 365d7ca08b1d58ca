"""Jobs for devices, from the programs on the hub's machine: ``Hub``."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from taskq import Call, State, TaskQ
from taskq.engine import Identity, LocalDisk, LogReader
from taskq.errors import JobNotFound, NotWaiting, UsageError
from taskq.hooks import blocking, off_loop
from taskq.values import spoken
from taskq.views import WAITING_STATES, Reason, Why, moment
from taskq_plugins.hub.copyfiles import IDENTITY, newest
from taskq_plugins.hub.hub_outbox import (
    EXPIRES,
    NONCE,
    QUEUE,
    TO,
    CopyReaders,
    Identified,
    read_note,
)
from taskq_plugins.hub.registry import OUTBOX, Registry, checked

if TYPE_CHECKING:
    from taskq import JobHandle
    from taskq.views import JobView

R = TypeVar("R")
#: The header of a job that went to each member of a group.
GROUP: Final = "hub-group"
_NONCE_BYTES: Final = 6
#: Jobs that one call hands on.
_JOBS_MAX: Final = 1_000_000


class Hub:
    """A hub's directory, for programs on its machine; enter it with ``async with``, or close it.

    ::

        hub = Hub("/srv/hub")
        job = await hub.device("edge-7").enqueue(update.call("7.2"))
        jobs = await hub.group("eu").enqueue(update.call("7.2"))
        print(await job.result(timeout="2d"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._app = Outbox(self.path)
        self._paused: set[str] = set()

    @cached_property
    def registry(self) -> Registry:
        """Return what is known of the hub's devices.

        Raises:
            UsageError: there is no hub.
        """
        if not (self.path / "devices").is_dir():
            raise UsageError(f"{self.path} is no hub: look at the path, or: taskq hub serve")
        return Registry(self.path)

    def device(self, name: str) -> Device:
        """Return a device that was enrolled.

        Raises:
            UsageError: none of that name was.
        """
        if not self.registry.is_enrolled(name):
            raise UsageError(f"{name!r:.80} has no token: taskq hub enroll {self.path} NAME")
        return Device(self, name)

    def group(self, name: str) -> DeviceGroup:
        """Return the devices of a group, as it is when jobs are enqueued.

        Raises:
            UsageError: that is no name of a group.
        """
        return DeviceGroup(self, checked(name, "group"))

    def call_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Return a call of a task that this program does not know; the device checks its arguments.

        Raises:
            InvalidCall: the arguments have no form in JSON.
        """
        return self._app.call_by_name(task, *args, **kwargs)

    def job(self, job: str | int | JobHandle[Any]) -> JobHandle[Any]:
        return self._app.job(job)

    async def enqueue_to(
        self, devices: list[str], call: Call[R], headers: dict[str, str]
    ) -> list[JobHandle[R]]:
        if not isinstance(call, Call):
            raise UsageError(f"a device takes calls such as task.call(...), got {call!r:.60}")
        if call.extras is not None and call.extras.concurrency_key:
            raise UsageError(f"{call.name}: a concurrency_key does not go over to a device")
        calls = [_addressed(call, device, headers) for device in devices]
        for addressed in calls:
            await self._close_queue(addressed.spec.queue)
        return await self._app.enqueue_many(calls)

    async def _close_queue(self, queue: str) -> None:
        if queue not in self._paused:
            await self._app.pause(queue)
            self._paused.add(queue)

    async def hand_on(self, device: str, other: str) -> int:
        """Move the jobs that wait for a device to another; return their number.

        Callers waiting for results get them from there. A job that the device took without
        reporting its end may run on both.
        """
        waiting = partial(_waiting_for, self.path, device)
        queue = f"{TO}{self.device(other).name}"
        await self._close_queue(queue)
        count = 0
        for job in await off_loop(waiting):
            with contextlib.suppress(NotWaiting):  # it has just ended
                count += await self._app.edit(job, queue=queue)
        return count

    hand_on_sync = blocking(hand_on)

    async def cancel_open(self, device: str) -> int:
        return (await self._app.cancel_many(queue=f"{TO}{device}")).count

    cancel_open_sync = blocking(cancel_open)

    async def close(self) -> None:
        await self._app.close()
        if registry := self.__dict__.pop("registry", None):
            registry.close()

    close_sync = blocking(close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


class Device:
    """One device of a hub."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self.name = name

    async def enqueue(self, call: Call[R]) -> JobHandle[R]:
        """Enqueue a call for this device, which takes it at its next request.

        Delay, expiry, key, priority and headers are those of the call. ``result()`` waits for the
        end that the device reports. With ``expires`` a job ends here unless the device took it in
        time, and there unless it ran in time.

        Raises:
            UsageError: the argument is not a call, or has a concurrency key.
            PayloadTooLarge: its payload is over 1 MiB.
            LogError: the outbox cannot be written.
        """
        (job,) = await self._hub.enqueue_to([self.name], call, {})
        return job

    enqueue_sync = blocking(enqueue)

    def log(self) -> LogReader:
        """Open the hub's copy of the device's log, of several the last; close it.

        Raises:
            LogError: nothing came of it yet.
        """
        return LogReader.open(newest(self._hub.path, self.name).path)


class DeviceGroup:
    """Devices that were put together by ``taskq hub enroll --group``."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self.name = name

    @property
    def devices(self) -> list[str]:
        return self._hub.registry.groups().get(self.name, [])

    async def enqueue(self, call: Call[R]) -> list[JobHandle[R]]:
        """Enqueue a call once for each member of now: for all of them or for none.

        Raises:
            UsageError: it is no call, has a concurrency key, or the group has no member.
            PayloadTooLarge: the calls together are over 17 MiB.
            LogError: the outbox cannot be written.
        """
        devices = await off_loop(lambda: self.devices)
        if not devices:
            raise UsageError(
                f"no device is in group {self.name!r}: taskq hub enroll HUB NAME --group GROUP"
            )
        return await self._hub.enqueue_to(devices, call, {GROUP: self.name})

    enqueue_sync = blocking(enqueue)


class Outbox(TaskQ):
    """The app of a hub's outbox, whose jobs others run."""

    def __init__(self, hub: Path) -> None:
        super().__init__(hub / OUTBOX)
        self._hub = hub

    async def why(self, job: Any) -> Reason:
        view = await self.job(job).view()
        if view.state not in WAITING_STATES or not view.queue.startswith(TO):
            return await super().why(job)
        return await off_loop(why, self._hub, view)


def why(hub: Path, view: JobView) -> Reason:
    device = view.queue.removeprefix(TO)
    registry, there = Registry(hub), find_there(hub, view)
    heard = _heard(registry, device)
    if there is not None and there[1].state is State.RUNNING:
        attempts = there[1].attempts
        since = f" since {moment(attempts[-1].started_ns)}" if attempts else ""
        text = f"it has been running on {device}{since}, as job {there[1].job_id}"
        return Reason(code=Why.RUNNING, text=f"{text}; {heard}")
    taken = [when for number, when in read_note(registry, device).parts if number >= view.lsn]
    if there is not None:
        state = there[1].state.name.lower()
        text = f"it was handed over, and is {state} on {device} as job {there[1].job_id}"
    elif taken:
        text = f"it was handed over to {device} at {moment(taken[0])}, which told no more of it yet"
    else:
        text = f"{device} has not taken it yet"
    return Reason(code=Why.NO_WORKER, text=f"{text}; {heard}")


def open_jobs(hub: Path) -> list[JobView]:
    """Return the jobs for devices that have not ended, the oldest first."""
    if not (hub / OUTBOX).is_dir():
        return []
    with LogReader.open(str(hub / OUTBOX)) as reader:
        views = reader.jobs(set(WAITING_STATES), None, None, _JOBS_MAX)
    return [view for view in reversed(views) if view.queue.startswith(TO)]


def find(hub: Path, job_id: str) -> list[tuple[str, JobView, str]]:
    """Return (log, job, why it waits) of each place where a job is: with its device's own view."""
    tag, seen = job_id.rpartition("-")[0], list[Any]()
    for file in [*hub.glob(f"{OUTBOX}/{IDENTITY}"), *sorted(hub.glob(f"devices/*/*/{IDENTITY}"))]:
        path, is_outbox = str(file.parent), file.parent.name == OUTBOX
        identity = Identity.read(LocalDisk(), path)
        if identity is None or identity.tag != tag:
            continue
        with contextlib.suppress(JobNotFound), LogReader.open(path) as reader:
            view = reader.job(reader.find_job(job_id))
            if view is None:
                continue
            waits = is_outbox and view.state in WAITING_STATES
            seen.append((path, view, why(hub, view).text if waits else ""))
            if is_outbox and (there := find_there(hub, view)):
                seen.append((*there, ""))
    return seen


def find_there(hub: Path, view: JobView) -> tuple[str, JobView] | None:
    tag, _, _ = view.job_id.partition("-")
    wanted = Identified(tag, view.lsn, view.headers.get(NONCE, ""))
    readings = CopyReaders(LocalDisk(), str(hub), view.queue.removeprefix(TO), {})
    readings.read_whole()
    latest: tuple[str, JobView] | None = None
    for reading in readings.logs.values():
        jobs = [job for job, known in reading.live.items() if known.identified == wanted]
        jobs += [end.job for known, end in reading.ends.items() if known.identified == wanted]
        for job in jobs:
            with LogReader.open(reading.path) as reader:
                there = reader.job(job)
            if there is not None:
                latest = reading.path, there
    return latest


def _addressed(call: Call[R], device: str, headers: dict[str, str]) -> Call[R]:
    chosen = call.chosen
    own = {NONCE: secrets.token_hex(_NONCE_BYTES), QUEUE: chosen.queue, **headers}
    if chosen.expires_ns:
        begin = 0 if chosen.expires_is_wall else time.time_ns()
        own[EXPIRES] = str(begin + chosen.expires_ns)
    return call.options(queue=f"{TO}{device}", expires=None, headers=own)


def _waiting_for(hub: Path, device: str) -> list[str]:
    return [view.job_id for view in open_jobs(hub) if view.queue == f"{TO}{device}"]


def _heard(registry: Registry, device: str) -> str:
    seen = registry.standing(device).get("heard_ns", 0)
    if not seen:
        return f"{device} was never heard of"
    return f"{device} was last heard of {spoken(max(time.time_ns() - seen, 0))} ago"
