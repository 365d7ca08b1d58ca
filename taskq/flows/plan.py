"""What a flow becomes in the log: its parts, expanded into jobs that wait for one another.

The jobs are numbered from the flow's end: first those that make up its result, then their inputs,
and so on. So a job's inputs mostly follow one another, and one run names ten thousand of them.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskq.calls.call import transaction_bytes
from taskq.core.errors import PayloadTooLarge, UsageError
from taskq.core.flows import DEPTH_MAX, ONE, UNLOCKS_MAX, FlowPart, Policy, depth, list_of, skipping
from taskq.core.model import TIME_NS_MAX, TRANSACTION_BYTES_MAX, Extras
from taskq.core.values import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.calls.call import Call
    from taskq.calls.ports import TaskPort

Node: TypeAlias = "Leaf | Chain | Group"
#: Parts within parts.
_NESTED_MAX: Final = 4 * DEPTH_MAX


@dataclass(frozen=True, slots=True)
class Leaf:
    """A job; ``takes``: its first argument is the result of what ran before."""

    call: Call[Any]
    takes: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A part after the other; ``policy`` is that of each part that waits for another."""

    parts: tuple[Node, ...]
    policy: Policy


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that run beside one another."""

    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of a flow, in the order in which they are enqueued.

    Attributes:
        calls: with what each has to do with the others.
        ends: so many of the first make up the result.
        shape: how their results nest.
    """

    calls: tuple[Call[Any], ...]
    ends: int
    shape: bytes


@dataclass(slots=True)
class _Job:
    call: Call[Any]
    inputs: list[_Job] = field(default_factory=list)
    shape: bytes = b""
    policy: Policy = Policy.CANCEL
    index: int = -1
    unlocks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Link:
    """Jobs that the next part waits for."""

    jobs: list[_Job]
    shape: bytes
    policy: Policy = Policy.CANCEL
    #: whether a part before keeps no result
    keeps_nothing: str = ""


def begins_open(node: Node) -> bool:
    """Return whether the part takes the result of one before it."""
    if isinstance(node, Leaf):
        return node.takes
    if isinstance(node, Group):
        return any(map(begins_open, node.members))
    return begins_open(node.parts[0])


def make_plan(node: Node) -> Plan:
    """Expand a flow.

    Raises:
        UsageError: it cannot be kept as it is: a step without anything before it, a key, a delay.
        PayloadTooLarge: its jobs do not fit one transaction.
    """
    end = _expand(node, None, 0)
    jobs = _numbered(end.jobs)
    if depth(end.shape) > DEPTH_MAX:
        raise UsageError(f"the flow nests groups over {DEPTH_MAX} deep: put steps between them")
    calls = tuple(
        _call(job, jobs, end) if job.index == 0 or job.unlocks or job.inputs or job.shape else
        _checked(job.call)
        for job in jobs
    )  # fmt: skip
    size = transaction_bytes((call.spec, call.body, call.extras) for call in calls)
    if size > TRANSACTION_BYTES_MAX:
        raise PayloadTooLarge(
            f"the flow of {len(calls)} jobs", size, TRANSACTION_BYTES_MAX,
            "it is one transaction: make several flows of it, or pass large arguments as files",
        )  # fmt: skip
    return Plan(calls, len(end.jobs), end.shape)


def _expand(node: Node, before: _Link | None, nested: int) -> _Link:
    if nested > _NESTED_MAX:
        raise UsageError(f"the flow nests parts over {_NESTED_MAX} deep: make it flatter")
    if isinstance(node, Leaf):
        return _leaf(node, before)
    if isinstance(node, Group):
        links = [_expand(member, before, nested + 1) for member in node.members]
        shape = list_of(link.shape for link in links)
        missing = next((link.keeps_nothing for link in links if link.keeps_nothing), "")
        return _Link([job for link in links for job in link.jobs], shape, keeps_nothing=missing)
    link = before
    for number, part in enumerate(node.parts):
        waited = link if not number or link is None else replace(link, policy=node.policy)
        link = _expand(part, waited, nested + 1)
        if not link.jobs and waited is not None and waited.jobs:
            # An empty group gives its empty list, but not before what came before it has ended.
            link = _Link(waited.jobs, skipping(len(waited.jobs)) + link.shape)
    assert link is not None
    return link


def _leaf(leaf: Leaf, before: _Link | None) -> _Link:
    job = _Job(leaf.call)
    name = leaf.call.name
    if leaf.takes and before is None:
        raise UsageError(
            f"{name}: a step takes the result of what runs before it, but the flow begins with it: "
            f"begin with task.call(...)"
        )
    if before is not None:
        job.inputs, job.policy = before.jobs, before.policy
        if leaf.takes:
            if before.keeps_nothing:
                raise UsageError(
                    f"{name}: it takes the result of {before.keeps_nothing}, which keeps none "
                    f"(store_result=False): keep it, or put {name}.call(...) there"
                )
            _check_input(leaf.call.task, before)
            job.shape = before.shape
    task = leaf.call.task
    drops = task is not None and not task.store_result
    return _Link([job], ONE, keeps_nothing=name if drops else "")


def _check_input(task: TaskPort[Any] | None, before: _Link) -> None:
    """Refuse results that a parameter without a type would take as their JSON."""
    if task is None or not task.takes_anything:
        return
    for giver in {id(job.call.task): job.call.task for job in before.jobs}.values():
        if giver is not None and not giver.gives_json:
            raise UsageError(
                f"{task.name}: its parameter {task.signature.names[0]!r} has no type, and would "
                f"take what {giver.name} returns as the JSON of it: annotate it with the type that "
                f"{giver.name} is annotated to return"
            )


def _numbered(ends: list[_Job]) -> list[_Job]:
    """Number all jobs that the ends wait for, directly or not, and return them in order."""
    jobs: list[_Job] = []

    def place(some: list[_Job]) -> None:
        for job in some:
            if job.index < 0:
                job.index = len(jobs)
                jobs.append(job)

    place(ends)
    for job in jobs:  # it grows meanwhile
        place(job.inputs)
    for job in jobs:
        for member in job.inputs:
            member.unlocks.append(job.index)
    return jobs


def _call(job: _Job, jobs: list[_Job], end: _Link) -> Call[Any]:
    call = _checked(job.call)
    chosen = call.chosen
    if job.inputs and (chosen.due_ns or (call.extras is not None and call.extras.due_ns)):
        raise UsageError(
            f"{call.name}: a job that waits for others takes no delay or eta: give it to the first "
            f"job, or raise Snooze within the task"
        )
    if len(job.unlocks) > UNLOCKS_MAX:
        raise UsageError(
            f"{len(job.unlocks)} jobs of the flow wait for {call.name}, at most {UNLOCKS_MAX} may: "
            f"put a step between the groups"
        )
    part = FlowPart(
        index=job.index, inputs=tuple(_runs(job.inputs)), policy=job.policy, shape=job.shape,
        unlocks=tuple(job.unlocks),
        jobs=0 if job.index else len(jobs), ends=0 if job.index else len(end.jobs),
        result=b"" if job.index else end.shape,
    )  # fmt: skip
    extras = replace(call.extras or Extras(), flow=part)
    if job.inputs:
        extras.due_ns, extras.due_is_wall = TIME_NS_MAX, True
    return replace(call, extras=extras)


def _checked(call: Call[Any]) -> Call[Any]:
    if call.extras is not None and call.extras.key is not None:
        raise UsageError(
            f"{call.name}: a job of a flow takes no dedup key, for another job might hold it: use "
            f".options(key=None)"
        )
    return call


def _runs(inputs: list[_Job]) -> Iterator[tuple[int, int]]:
    first = count = 0
    for job in inputs:
        if count and job.index == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = job.index, 1
    if count:
        yield first, count
