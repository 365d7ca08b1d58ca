"""Jobs for devices, from the programs on the hub's machine: ``Hub``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from taskq import Call, JobHandle, State, TaskQ
from taskq.engine import Identity, LocalDisk, LogReader, LogView, Tag
from taskq.errors import InvalidJobId, LogError, ResultTimeout, UsageError, WrongLog
from taskq.hooks import blocking, off_loop
from taskq.values import Duration, seconds, spoken
from taskq.views import LIVE_STATES, WAITING_STATES, Reason, Why, moment
from taskq_plugins.hub import outbox
from taskq_plugins.hub.copies import IDENTITY, newest
from taskq_plugins.hub.models import JOB
from taskq_plugins.hub.registry import OUTBOX, Registry, checked

if TYPE_CHECKING:
    from taskq.views import JobView

R = TypeVar("R")
#: Header of a job for each member of a group.
GROUP: Final = "hub-group"
#: Pause between two looks for a result: at first, and at most.
_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS_MAX: Final = 2.0
#: Jobs in one call of ``hand_on`` at most.
_JOBS_MAX: Final = 1_000_000


class Hub:
    """A hub's directory, for programs on its machine. Use ``async with``, or call ``close``.

    ::

        hub = Hub("/srv/hub")
        job = await hub.device("edge-7").enqueue(update.call("7.2"))
        jobs = await hub.group("eu").enqueue(update.call("7.2"))
        print(await job.result(timeout="2d"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._outboxes: dict[str, Outbox] = {}

    @cached_property
    def registry(self) -> Registry:
        """Return the registry of the hub's devices.

        Raises:
            UsageError: the directory is not a hub.
        """
        if not (self.path / "devices").is_dir():
            raise UsageError(f"{self.path} is no hub: look at the path, or: taskq hub serve")
        return Registry(self.path)

    def device(self, name: str) -> Device:
        """Return an enrolled device.

        Raises:
            UsageError: no device of this name is enrolled.
        """
        if not self.registry.is_enrolled(name):
            raise UsageError(f"{name!r:.80} has no token: taskq hub enroll {self.path} NAME")
        return Device(self, name)

    def group(self, name: str) -> DeviceGroup:
        """Return a group; its members are looked up at each enqueue.

        Raises:
            UsageError: the text is not a valid name of a group.
        """
        return DeviceGroup(self, checked(name, "group"))

    def call_by_name(self, task: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """Return a call of a task that this program does not have; the device checks its arguments.

        Raises:
            InvalidCall: the arguments cannot be converted to JSON.
        """
        return TaskQ(self.path / OUTBOX).call_by_name(task, *args, **kwargs)

    def job(self, job: str | JobHandle[Any]) -> JobHandle[Any]:
        """Return the handle of a job for a device, by its id.

        Raises:
            InvalidJobId: the text is not a job id.
            WrongLog: no device of the hub has such a job.
        """
        tag, _, lsn = str(getattr(job, "id", job)).partition("-")
        if not lsn.isdecimal():
            raise InvalidJobId(f"{job!r:.60} is no id of a job")
        unreadable: LogError | None = None
        for device in outbox.devices(self.path):
            try:
                identity = Identity.read(LocalDisk(), str(outbox.folder(self.path, device)))
            except LogError as error:
                unreadable = error
                continue
            if identity is not None and identity.tag.takes(tag, int(lsn)):
                return SentJob(self.outbox(device), None, identity.tag, int(lsn))
        if unreadable is not None:
            raise unreadable
        raise WrongLog(f"{self.path} has no device whose jobs begin with {tag}")

    def outbox(self, device: str) -> Outbox:
        """Return the app of the log of jobs for a device."""
        app = self._outboxes.get(device)
        if app is None:
            app = self._outboxes[device] = Outbox(self.path, device, self.registry)
        return app

    async def hand_on(self, device: str, other: str) -> int:
        """Move the waiting jobs of a device to another device; return their number.

        They get new ids there and are cancelled here. A job that the device took without reporting
        its end may run on both.
        """
        return await self.outbox(device).hand_on(self.outbox(self.device(other).name))

    hand_on_sync = blocking(hand_on)

    async def cancel_open(self, device: str) -> int:
        """Cancel all jobs for a device that have not ended."""
        app = self.outbox(device)
        jobs = await app.waiting()
        port = await app.connection.port()
        count = sum([bool(await port.cancel(job)) for job in jobs])
        outbox.ring(self.path)
        return count

    cancel_open_sync = blocking(cancel_open)

    async def close(self) -> None:
        """Close the outboxes and the registry. Legal twice."""
        while self._outboxes:
            await self._outboxes.popitem()[1].close()
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
        """Enqueue a call for this device, which takes the job at its next request.

        The device runs the job with the call's delay, priority and headers. ``result()`` waits
        until the device reports the job's end. With ``expires`` a job ends here unless the device
        took it in time, and on the device unless it ran in time.

        Raises:
            UsageError: the argument is not a call, or has a concurrency key or a header of the hub.
            PayloadTooLarge: the payload is over 1 MiB.
            LogError: the outbox cannot be written.
        """
        return await self._hub.outbox(self.name).send(_checked(call))

    enqueue_sync = blocking(enqueue)

    def log(self) -> LogReader:
        """Open the hub's copy of the device's log, or of its latest one; the caller closes it.

        Raises:
            LogError: the device has sent no log yet.
        """
        return LogReader.open(newest(self._hub.path, self.name).path)


class DeviceGroup:
    """Devices with the same ``--group`` of ``taskq hub enroll``."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self.name = name

    @property
    def devices(self) -> list[str]:
        """Names of the current members."""
        return self._hub.registry.groups().get(self.name, [])

    async def enqueue(self, call: Call[R]) -> list[JobHandle[R]]:
        """Enqueue a call once for each current member.

        If one job cannot be enqueued, the others are cancelled. A crash in between leaves the first
        jobs enqueued; with a ``key`` a second identical call adds only the missing jobs.

        Raises:
            UsageError: the argument is not a call, or has a concurrency key or a header of the hub,
                or the group is empty.
            PayloadTooLarge: the payload is over 1 MiB.
            LogError: an outbox cannot be written.
        """
        devices = await off_loop(lambda: self.devices)
        if not devices:
            raise UsageError(
                f"no device is in group {self.name!r}: taskq hub enroll HUB NAME --group GROUP"
            )
        call = _checked(call).options(headers={GROUP: self.name})
        jobs: list[JobHandle[R]] = []
        try:
            for app in map(self._hub.outbox, devices):
                jobs += [await app.send(call)]
        except BaseException:
            for job in jobs:
                if not job.duplicate:
                    await job.cancel()
            raise
        return jobs

    enqueue_sync = blocking(enqueue)


def _checked(call: Call[R]) -> Call[R]:
    if not isinstance(call, Call):
        raise UsageError(f"a device takes calls such as task.call(...), got {call!r:.60}")
    if call.extras is not None and call.extras.concurrency_key:
        raise UsageError(f"{call.name}: a concurrency_key does not go over to a device")
    if call.extras is not None and (own := outbox.OWN_HEADERS & call.extras.headers.keys()):
        raise UsageError(f"{call.name}: the header {min(own)!r} is the hub's: name it otherwise")
    return call


class Outbox(TaskQ):
    """App of the log of jobs for one device; no worker runs them here."""

    def __init__(self, hub: Path, device: str, registry: Registry | None = None) -> None:
        self.path = outbox.folder(hub, device)
        super().__init__(self.path, keep=outbox.KEEP_SECONDS)
        self.hub, self.device, self._registry = hub, device, registry or Registry(hub)
        self._reader = outbox.DeviceReader(hub, device)

    @property
    def is_there(self) -> bool:
        return (self.path / IDENTITY).is_file()

    async def send(self, call: Call[R]) -> JobHandle[R]:
        """Enqueue a call for the device."""
        if call.extras is not None and call.extras.key is not None and self.is_there:
            await self.settle()  # may free the key
        begins = await off_loop(outbox.begins, self.hub, self.device)
        job = await self.enqueue(call.options(headers={outbox.FROM: begins}))
        await off_loop(outbox.ring, self.hub)
        return SentJob(self, job._task, job._tag, job.lsn, job.duplicate)

    async def settle(self) -> None:
        await outbox.settle(self.connection, self._reader)

    async def waiting(self) -> list[int]:
        """Return the jobs that have not ended."""
        if not self.is_there:
            return []
        await self.settle()
        port = await self.connection.port()
        return (await port.look(outbox.waiting_in))[0]

    async def hand_on(self, other: Outbox) -> int:
        """Enqueue the waiting jobs for another device, and cancel them here."""
        jobs = await self.waiting()
        port = await self.connection.port()
        for job in jobs:
            record = await port.look(partial(LogView.brought, job=job))
            begins = await off_loop(outbox.begins, other.hub, other.device)
            moved = outbox.hub_job(self.connection.tag.id(job), record, time.time_ns())
            if moved is not None:
                moved.headers[outbox.FROM] = begins
                del moved.headers[JOB]
                await other.connection.send_many([outbox.item_of(moved)])
            await port.cancel(job)
        await off_loop(outbox.ring, self.hub)
        return len(jobs)

    async def why(self, job: Any) -> Reason:
        view = await self._handle(job, None).view()
        return (await off_loop(self.look, [view]))[0][1]

    def jobs(self, states: Collection[State] = ()) -> list[JobView]:
        """Return the device's jobs with one of these states in the outbox, oldest first."""
        return [view for view, _ in self._looked(states)]

    def open_jobs(self) -> list[tuple[JobView, Reason]]:
        """Return the jobs that have not ended, oldest first, and why."""
        looked = self._looked(WAITING_STATES)
        return [(view, reason) for view, reason in looked if view.state in LIVE_STATES]

    def _looked(self, states: Collection[State]) -> list[tuple[JobView, Reason]]:
        with LogReader.open(str(self.path)) as reader:
            views = reader.jobs(set(states) or None, None, None, _JOBS_MAX)
        return self.look(views[::-1])

    def look(self, views: Sequence[JobView]) -> list[tuple[JobView, Reason]]:
        """Return jobs of the outbox, oldest first, with the state and result of the device's log.

        The reason explains each job's state. The copies of the log are read once for all jobs.
        """
        if not views:
            return []
        identity = Identity.read(LocalDisk(), str(self.path))
        tag = Tag("") if identity is None else identity.tag
        standing = self._registry.standing(self.device)
        self._reader.read(views[0].headers)
        looked = []
        with contextlib.ExitStack() as readers:
            opened = cache(lambda path: readers.enter_context(LogReader.open(path)))
            for view in views:
                device_job = self._reader.find(tag, view.lsn)
                its = opened(device_job.path).job(device_job.number) if device_job else None
                words = device_job.words if device_job else ""
                is_given = view.lsn <= int(standing.get("given", {}).get(tag.of(view.lsn), 0))
                is_taken = self._reader.is_taken(tag, view.lsn)
                merged = self._merged(view, its, words, is_given=is_given, is_taken=is_taken)
                looked.append((merged, self._reason(merged, its, standing, is_given=is_given)))
        return looked

    def _merged(
        self, view: JobView, its: JobView | None, words: str, *, is_given: bool, is_taken: bool
    ) -> JobView:
        """Return a job with the state on its device, which may refuse it with some words."""
        if view.state is State.CANCELLED:
            return view
        if its is not None:
            reason = f"{self.device} refuses it: {words}" if words else its.reason
            return replace(
                view, state=State.DEAD if words else its.state, attempt=its.attempt,
                attempts=its.attempts, settled_ns=its.settled_ns, result=its.result,
                result_flags=its.result_flags, stores_result=its.stores_result, reason=reason,
                problem=its.problem,
            )  # fmt: skip
        if 0 < view.expires_ns <= time.time_ns():
            # The device may have the job without having reported it yet.
            return replace(view, state=State.READY if is_given and not is_taken else State.EXPIRED)
        if is_taken:
            reason = f"{self.device} took it, and its log does not show how it ended"
            return replace(view, state=State.DEAD, reason=reason)
        return view

    def _reason(
        self, view: JobView, its: JobView | None, standing: dict[str, Any], *, is_given: bool
    ) -> Reason:
        device = self.device
        if view.state not in LIVE_STATES:
            word, where = view.state.name.lower(), f" on {device}" if its else ""
            verb = word if view.state is State.SUCCEEDED else f"is {word}"
            words = f": {view.reason}" if view.reason else ""
            return Reason(code=Why[view.state.name], text=f"it {verb}{where}{words}")
        code, contact = Why.NO_WORKER, f"{device} was never heard of"
        if heard_ns := standing.get("heard_ns", 0):
            contact = f"{device} was last heard of {spoken(max(time.time_ns() - heard_ns, 0))} ago"
        if its is None:
            text = f"{device} has not taken it yet"
            if is_given:
                text = f"it was handed over to {device}, which has reported nothing about it yet"
        elif its.state is State.RUNNING:
            since = f" since {moment(its.attempts[-1].started_ns)}" if its.attempts else ""
            code, text = Why.RUNNING, f"it has been running on {device}{since}, as job {its.job_id}"
        else:
            text = f"it was handed over to {device} at {moment(its.enqueued_ns)}, and is "
            text += f"{its.state.name.lower()} there as job {its.job_id}"
        return Reason(code=code, text=f"{text}; {contact}")


class SentJob(JobHandle[R]):
    """Handle of a job for a device; result and state come from the device's log."""

    __slots__ = ()

    @property
    def _outbox(self) -> Outbox:
        return cast("Outbox", self._app)

    async def result(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - part of the API
        """Wait until the device's report of the end arrives; see ``JobHandle.result``."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        until = None if limit is None else time.monotonic() + limit
        pause = _LOOK_SECONDS
        while True:
            view = await self._view()
            if view.state not in LIVE_STATES:
                break
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                why = (await self._app.why(self.id)).text
                path = str(self._app.data_dir)
                raise ResultTimeout(self.id, limit or 0.0, view.state.name.lower(), why, path)
            await asyncio.sleep(min(pause, left))
            pause = min(1.5 * pause, _LOOK_SECONDS_MAX)
        body = view.result
        if view.result_flags and body is not None:
            packer = self._outbox.connection.packer
            body = await packer.unpacked(body, view.result_flags, self._result_name)
        if view.state is State.DEAD:
            body = view.reason.encode()
        return self._value(view.state, body, view)

    result_sync = blocking(result)  # type: ignore[arg-type, misc]

    async def cancel(self) -> bool:
        """Cancel the job here at once, and on its device at the next sync."""
        if (await self._view()).state not in LIVE_STATES:
            return False
        is_cancelled = await super().cancel()
        await off_loop(outbox.ring, self._outbox.hub)
        return is_cancelled

    cancel_sync = blocking(cancel)  # type: ignore[arg-type, misc]

    async def _view(self) -> JobView:
        return (await off_loop(self._outbox.look, [await super()._view()]))[0][0]
