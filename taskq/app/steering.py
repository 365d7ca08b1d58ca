"""Changes of a log at run time: pauses and limits of tasks, slots of workers, added schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

from taskq.app.schedules import Schedule, ScheduleChoices, schedule_of
from taskq.calls.call import Call, Options, make_call
from taskq.connection.blocking import blocking, off_loop
from taskq.core import controls, durations, errors, model, parsing, records, schedules
from taskq.core.sources import SourceState
from taskq.schedules import LogSchedules, parse_rule

if TYPE_CHECKING:
    from taskq.app.holder import LogHolder, TaskName
    from taskq.app.tasks import Task
    from taskq.log.state.facets import LogView

_DEFAULTS: Final = Options()
_KEYS: Final = frozenset({"key", "concurrency_key"})


async def steer_task(log: LogHolder, task: TaskName, changes: Mapping[str, object]) -> bool:
    """Change pause and limits of a task under all its names: jobs may wait under an old one."""
    names = (task,) if isinstance(task, str) else (task.name, *task.aliases)
    for name in names:
        parsing.check_name("task name", name)
    ports = [await each._connection.port() for each in log.logs()]
    wishes = [controls.Change(controls.TASK + name, changes) for name in names]
    return any([await port.control(wish) for port in ports for wish in wishes])


async def limit_task(
    log: LogHolder, task: TaskName, concurrency: int | None, rate: str | None
) -> bool:
    """See ``LogHolder.limit``."""
    return await steer_task(log, task, controls.checked_limits(concurrency, rate))


async def set_slots(log: LogHolder, count: int | None, worker: int | None) -> bool:
    """See ``LogHolder.set_slots``."""
    number = None if count is None else controls.checked_slots(count)
    changed, is_there = False, worker is None
    for each in log.logs():
        store = await each._connection.opened()
        workers, port = await off_loop(store.live_workers), store.port()
        alive = {f"{it.owner:x}": it.pid for it in workers}
        known = controls.value_of(await port.look(_controls), controls.SLOTS)
        # A number for all workers replaces numbers of single workers; dead workers have none.
        changes = {it: None for it in known if it and (worker is None or it not in alive)}
        chosen = [""] if worker is None else [it for it in alive if alive[it] == worker]
        is_there = is_there or bool(chosen)
        wishes = {**changes, **dict.fromkeys(chosen, number)}
        changed |= await port.control(controls.Change(controls.SLOTS, wishes))
    if not is_there:
        see = errors.command(log._connection.path, "workers")
        raise errors.UsageError(f"no worker of this log has the process id {worker}: see {see}")
    return changed


async def controls_of(log: LogHolder) -> dict[str, dict[str, Any]]:
    """See ``LogHolder.controls``."""
    known: dict[str, dict[str, Any]] = {}
    for each in log.logs():
        port = await each._connection.port()
        known |= controls.values_of(await port.look(_controls))
    return known


def _controls(sight: LogView) -> dict[str, SourceState]:
    return dict(sight.facets.need_agenda().controls)


def kept_call(call: Call[Any]) -> dict[str, Any]:
    """Return a call in the form that the log stores for a schedule."""
    extras = call.extras or model.Extras()
    chosen = replace(call.chosen, key=extras.key, concurrency_key=extras.concurrency_key or None)
    options = {name: getattr(chosen, name) for name in Options.__dataclass_fields__}
    given = {name: it for name, it in options.items() if it != getattr(_DEFAULTS, name)}
    for name in _KEYS & given.keys():
        try:
            given[name] = given[name].decode()
        except UnicodeDecodeError as error:
            raise errors.UsageError(
                f"{call.name}: the {name} of a schedule's call must be text"
            ) from error
    return {"body": call.body.decode(), "flags": int(call.flags), "options": given}


class AppSchedules(LogSchedules):
    """The schedules of a log, declared in code or added at run time: ``app.schedules``."""

    def added(
        self, name: str, state: schedules.ScheduleState, tasks: Mapping[str, Task[..., Any]]
    ) -> Schedule | None:
        """Return a schedule that was added at run time, for a worker.

        Args:
            name: of the schedule.
            state: its state in the log.
            tasks: the worker's tasks by name; calls of other tasks are scheduled, too.

        Returns:
            None if it is declared in code, or this version of taskq cannot read it.
        """
        return _added(name, state, tasks)

    async def add(
        self,
        name: str,
        call: Call[Any],
        *,
        cron: str | None = None,
        every: durations.Duration | None = None,
        tz: object = "UTC",
        **choices: Unpack[ScheduleChoices],
    ) -> None:
        """Enqueue a call by the clock from now on; any worker of the log may tick it.

        ``await app.schedules.add("eu", sync.call("eu"), every="10m")``

        The log keeps the schedule with the call's arguments and options until ``remove``. It
        replaces an added schedule of that name; with another rule it counts from now on.

        Raises:
            UsageError: a schedule in a worker's code has that name, or as ``app.schedule``.
            LogError: the log could not be opened or written.
        """
        schedule = schedule_of(name, call, choices, cron=cron, every=every, tz=tz)
        schedule.kept = kept_call(call)
        port = await self._connection.port()
        self._connection.packer.loose(schedule.call)  # refuse a call of another shard
        await port.enrol([schedule.enrolment()])

    add_sync: Final = blocking(add)

    async def remove(self, name: str) -> bool:
        """Remove a schedule that was added at run time; a schedule in code returns with a worker.

        Raises:
            UsageError: the log knows no such schedule.
            LogError: the log could not be opened or written.
        """
        return await self.forget(name)

    remove_sync: Final = blocking(remove)


def _added(
    name: str, state: schedules.ScheduleState, tasks: Mapping[str, Task[..., Any]]
) -> Schedule | None:
    if not schedules.is_added(state.details):
        return None
    try:
        facts = parsing.parse_json(state.details)
        kept, task = facts["call"], facts["task"]
        options = kept["options"]
        if "on_conflict" in options:
            options["on_conflict"] = model.Conflict(options["on_conflict"])
        flags = records.Flag(kept["flags"])
        call = make_call(task, tasks.get(task), kept["body"].encode(), flags, Options(**options))
        choices: ScheduleChoices = {
            "catch_up": facts["catch_up"],
            "jitter": facts["jitter_seconds"],
            "overlap": facts["overlap"],
        }
        schedule = Schedule(name, parse_rule(state.rule), call, lambda: call, choices)
        schedule.kept = kept
        _ = schedule.call
    except (errors.TaskqError, ValueError, TypeError, LookupError, AttributeError):
        return None  # written by a later version
    return schedule
