"""Jobs that follow one another: chains, groups, chords, and a task mapped over many values."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, Unpack, overload

from taskq.calls.call import AppPort, Call, OptionChanges, Runnable, TaskPort, transaction_bytes
from taskq.calls.habits import STEPS, no_attribute
from taskq.connection.blocking import blocking
from taskq.connection.connection import Connection
from taskq.core import errors, flows, model, parsing
from taskq.core.model import TRANSACTION_BYTES_MAX
from taskq.core.values import NamedTuple, dataclass
from taskq.flows.handle import FlowHandle

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")
R = TypeVar("R")
S = TypeVar("S")
X = TypeVar("X")
X_contra = TypeVar("X_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

#: Reaction to the failure of an input.
OnFailure: TypeAlias = Literal["cancel", "run", "wait"]
Node: TypeAlias = "Leaf | Chain | Parallel"
#: Parts within parts.
_NESTED_MAX: Final = 4 * flows.DEPTH_MAX
#: Jobs that are linked before the event loop turns.
_TURN_JOBS: Final = 1_000
#: Most parts in a flow's repr.
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Leaf:
    """A job. If it ``takes``, its first argument is the result of the part before it."""

    call: Call[Any]
    takes: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Parts one after the other; ``policy`` is each part's reaction to a failure before it."""

    parts: tuple[Node, ...]
    policy: flows.Policy


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parts that run side by side."""

    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of a flow, in the order in which they are enqueued.

    Attributes:
        calls: the calls, with the links between their jobs in the extras.
        ends: number of jobs, from the first, whose results form the flow's result.
        shape: nesting of these results.
    """

    calls: tuple[Call[Any], ...]
    ends: int
    shape: bytes


def begins_open(node: Node) -> bool:
    """Return whether the part takes the result of another part."""
    if isinstance(node, Leaf):
        return node.takes
    if isinstance(node, Parallel):
        return any(map(begins_open, node.members))
    return begins_open(node.parts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Replaces the result of a failed job under ``on_failure="run"``.

    Attributes:
        job_id: the job.
        reason: reason of its death, "cancelled", or "expired".
        failed: distinguishes it from other values in JSON.
    """

    job_id: str
    reason: str
    failed: Literal[True] = True


@dataclass(frozen=True, slots=True, eq=False)
class Flow(Runnable[R_co]):
    """Jobs that belong together and have a result of type ``R``. It may be enqueued repeatedly.

    Made by ``chain``, ``group``, ``chord`` and ``task.map``.

    A flow is built from calls, frozen and typed. All of its jobs are enqueued in one transaction,
    and none runs before its inputs are done, even if a process dies.
    """

    node: Node

    async def enqueue(self) -> FlowHandle[R_co]:
        """Enqueue all of its jobs in one transaction, as durable as the app's setting on return.

        Raises:
            UsageError: the flow is invalid; nothing was written.
            PayloadTooLarge: its jobs are over TRANSACTION_BYTES_MAX together; nothing was written.
            LogError: the log could not be opened or written.
        """
        app = self._app()
        if app is None:
            return _empty(self)
        handle: FlowHandle[R_co] = await app.enqueue_flow(self)
        return handle

    def enqueue_sync(self) -> FlowHandle[R_co]:
        """Do as ``enqueue``, blocking this thread."""
        handle: FlowHandle[R_co] = blocking(Flow.enqueue)(self)
        return handle

    def _app(self) -> AppPort[Connection] | None:
        """Return the app of its tasks; None if the flow has no jobs."""
        left = [self.node]
        is_empty = True
        first: TaskPort[Any] | None = None
        while left:
            node = left.pop()
            if isinstance(node, Leaf):
                is_empty = False
                task = node.call.task
                if first is None:
                    first = task
                elif task is not None and task.app is not first.app:
                    _check_same_log(first, task)
            else:
                left += node.parts if isinstance(node, Chain) else node.members
        if first is not None:
            return first.app
        if is_empty:
            return None
        raise errors.UsageError("the flow knows no app: use app.enqueue_flow(flow)")

    def __repr__(self) -> str:
        return f"<Flow {_text(self.node)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[X_contra, R_co]):
    """A part of a flow from an ``X`` to an ``R``, made by ``task.step(...)``.

    The first parameter of its task gets the result of the part before it.
    """

    node: Node

    if not TYPE_CHECKING:  # a type checker would accept any name otherwise

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the remedy for attributes of whole flows."""
            raise no_attribute(self, "a step", name, STEPS, "step")

    def options(self, **changes: Unpack[OptionChanges]) -> Step[X_contra, R_co]:
        """Return a new step with these options changed.

        Raises:
            UsageError: an option is wrong, or the step consists of several steps.
        """
        if not isinstance(self.node, Leaf):
            raise errors.UsageError(
                "options belong to single steps: give them before you combine them"
            )
        return Step(Leaf(self.node.call.options(**changes), takes=True))

    def __repr__(self) -> str:
        return f"<Step {_text(self.node)}>"


Next: TypeAlias = Step[A, B] | Runnable[B]
Part: TypeAlias = Runnable[Any] | Step[Any, Any]


# fmt: off
@overload
def chain(a: Runnable[A], /, *, on_failure: OnFailure = ...) -> Flow[A]: ...
@overload
def chain(a: Runnable[A], b: Next[A, B], /, *, on_failure: OnFailure = ...) -> Flow[B]: ...
@overload
def chain(
    a: Runnable[A], b: Next[A, B], c: Next[B, C], /, *, on_failure: OnFailure = ...
) -> Flow[C]: ...
@overload
def chain(
    a: Runnable[A], b: Next[A, B], c: Next[B, C], d: Next[C, D], /, *, on_failure: OnFailure = ...
) -> Flow[D]: ...
@overload
def chain(
    a: Runnable[A], b: Next[A, B], c: Next[B, C], d: Next[C, D], e: Next[D, E], /,
    *, on_failure: OnFailure = ...,
) -> Flow[E]: ...
@overload
def chain(
    a: Runnable[A], b: Next[A, B], c: Next[B, C], d: Next[C, D], e: Next[D, E], f: Next[E, F], /,
    *, on_failure: OnFailure = ...,
) -> Flow[F]: ...
@overload
def chain(
    a: Runnable[A], b: Next[A, B], c: Next[B, C], d: Next[C, D], e: Next[D, E], f: Next[E, F],
    g: Next[F, G], h: Next[G, H], /, *rest: Next[Any, Any], on_failure: OnFailure = ...,
) -> Flow[Any]: ...
@overload
def chain(a: Step[X, A], /, *, on_failure: OnFailure = ...) -> Step[X, A]: ...
@overload
def chain(a: Step[X, A], b: Next[A, B], /, *, on_failure: OnFailure = ...) -> Step[X, B]: ...
@overload
def chain(
    a: Step[X, A], b: Next[A, B], c: Next[B, C], /, *, on_failure: OnFailure = ...
) -> Step[X, C]: ...
@overload
def chain(
    a: Step[X, A], b: Next[A, B], c: Next[B, C], d: Next[C, D], /, *, on_failure: OnFailure = ...
) -> Step[X, D]: ...
# fmt: on


def chain(*parts: Part, on_failure: OnFailure = "cancel") -> Any:
    """Run parts one after the other; a step takes the result of the part before it.

    ::

        await chain(fetch.call(url), count.step(), store.step()).enqueue()

    A ``Call`` in a later place only waits for the part before it. A chain that begins with a step
    is a step itself, for use in another flow. ``on_failure`` is as for ``chord``.

    Raises:
        UsageError: a part is neither a call, a step nor a flow.
    """
    if not parts:
        raise errors.UsageError("chain() takes at least one part, such as task.call(...)")
    nodes = tuple(_node("chain", part) for part in parts)
    return _flow_or_step(Chain(nodes, _policy(on_failure)))


@overload
def group(members: Iterable[Runnable[R]], /) -> Flow[list[R]]: ...
@overload
def group(members: Iterable[Step[X, R]], /) -> Step[X, list[R]]: ...
@overload
def group(*members: Runnable[R]) -> Flow[list[R]]: ...
@overload
def group(*members: Step[X, R]) -> Step[X, list[R]]: ...


def group(*members: Any) -> Any:
    """Run parts side by side; the result is the list of their results, in this order.

    Args:
        members: calls, steps or flows, one by one or as one iterable. A group of steps is a step
            itself: each member takes the same value.

    Raises:
        UsageError: a part is neither a call, a step nor a flow.
    """
    return _flow_or_step(Parallel(_members("group", members)))


@overload
def chord(
    members: Iterable[Runnable[R]] | Flow[list[R]],
    callback: Step[list[R | Failed], S],
    on_failure: Literal["run"],
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Runnable[R]] | Flow[list[R]],
    callback: Next[list[R], S],
    on_failure: Literal["cancel", "wait"] = ...,
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Runnable[Any]] | Flow[list[Any]],
    callback: Runnable[S],
    on_failure: OnFailure = ...,
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Step[X, R]] | Step[X, list[R]],
    callback: Next[list[R], S],
    on_failure: Literal["cancel", "wait"] = ...,
) -> Step[X, S]: ...


def chord(members: Any, callback: Any, on_failure: OnFailure = "cancel") -> Any:
    """Run parts side by side, then a step that takes the list of their results.

    Args:
        members: calls or flows, or one group; a group among others is one member with a list as its
            result.
        callback: a step; or a call or flow, which only waits for the members.
        on_failure: if a member dies, is cancelled or expires: "cancel" the callback and everything
            after it; "run" it with a ``Failed`` in that member's place; or let it "wait" until the
            dead letter is requeued and succeeds. A member that is cancelled, expired or purged
            never succeeds: the callback is cancelled.

    Raises:
        UsageError: a part is neither a call, a step nor a flow.
    """
    node = members.node if isinstance(members, Flow | Step) else None
    if not isinstance(node, Parallel):
        node = Parallel(_members("chord", (members,)))
    return _flow_or_step(Chain((node, _node("chord", callback)), _policy(on_failure)))


def plan_of(flow: object) -> Plan:
    """Return the jobs of a flow; raises as ``plan_steps``."""
    steps = plan_steps(flow)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            plan: Plan = done.value
            return plan


def plan_steps(flow: object) -> Generator[None, None, Plan]:
    """Expand a flow into jobs, a few between two yields, and return them."""
    if not isinstance(flow, Flow):
        what = flow.name if isinstance(flow, Call) else f"{flow!r:.80}"
        remedy = "chain(...) makes a flow of task.call(...)"
        if isinstance(flow, Step):
            remedy = "begin it with task.call(...)"
        raise errors.UsageError(f"{what} is no flow that could be enqueued: {remedy}")
    return (yield from _make_plan(flow.node))


def _empty(flow: Flow[R]) -> FlowHandle[R]:
    plan = plan_of(flow)
    return FlowHandle(None, (), plan.ends, plan.shape)


def _check_same_log(first: TaskPort[Any], other: TaskPort[Any]) -> None:
    if other.app.data_dir != first.app.data_dir:
        raise errors.UsageError(
            f"{first.name} and {other.name} of this flow are tasks of two apps, and the workers of "
            f"one know nothing of the other's: name the app that runs it, "
            f"app.enqueue_flow(flow)"
        )


def _members(where: str, members: tuple[Any, ...]) -> tuple[Node, ...]:
    if len(members) == 1 and not isinstance(members[0], Call | Flow | Step):
        if not isinstance(members[0], Iterable):
            raise errors.UsageError(
                f"{where}() takes calls or an iterable of them, got {members[0]!r:.60}"
            )
        members = tuple(members[0])
    return tuple(_node(where, member) for member in members)


def _node(where: str, part: object) -> Node:
    if isinstance(part, Call):
        return Leaf(part)
    if isinstance(part, Flow | Step):
        return part.node
    raise errors.UsageError(
        f"{where}() takes task.call(...), task.step(...) and other flows, got {part!r:.60}"
    )


def _flow_or_step(node: Node) -> Flow[Any] | Step[Any, Any]:
    return Step(node) if begins_open(node) else Flow(node)


def _policy(on_failure: str) -> flows.Policy:
    try:
        return flows.Policy[on_failure.upper()]
    except (KeyError, AttributeError):
        raise errors.UsageError(
            f'on_failure is {on_failure!r:.60}, it must be "cancel", "run" or "wait"'
        ) from None


def _text(node: Node) -> str:
    if isinstance(node, Leaf):
        return node.call.name
    if isinstance(node, Parallel):
        return f"({parsing.listed(map(_text, node.members), _SHOWN)})"
    return " → ".join(_text(part) for part in node.parts[:_SHOWN]) + (
        " …" if len(node.parts) > _SHOWN else ""
    )


# -- flows as jobs ---------------------------------------------------------------------------------
#
# The jobs are numbered from the flow's end: first the jobs that make up its result, then their
# inputs, and so on. The inputs of a job usually follow each other: one range names ten thousand.


class _Job:
    __slots__ = ("call", "index", "inputs", "policy", "runs", "shape", "unlocks")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.inputs: Sequence[_Job] = ()
        #: the inputs by their indexes
        self.runs: tuple[tuple[int, int], ...] = ()
        self.shape = b""
        self.policy = flows.Policy.CANCEL
        self.index = -1
        self.unlocks: tuple[int, ...] = ()


class _Link(NamedTuple):
    """Jobs that the next part waits for, and the nesting of their results."""

    jobs: Sequence[_Job]
    shape: bytes
    policy: flows.Policy = flows.Policy.CANCEL
    #: name of a task of these jobs that keeps no result
    dropped_by: str = ""
    #: tasks of these jobs, each once
    tasks: tuple[TaskPort[Any], ...] = ()


def _make_plan(node: Node) -> Generator[None, None, Plan]:
    end = _expand(node, None, 0)
    yield
    jobs = _number_jobs(end.jobs)
    yield
    if flows.depth(end.shape) > flows.DEPTH_MAX:
        raise errors.UsageError(
            f"the flow nests groups over {flows.DEPTH_MAX} deep: put steps between them"
        )
    calls: list[Call[Any]] = []
    size = 0
    for start in range(0, len(jobs), _TURN_JOBS):
        some = [_linked_call(job, jobs, end) for job in jobs[start : start + _TURN_JOBS]]
        size += transaction_bytes((call.spec, call.body, call.extras) for call in some)
        calls += some
        yield
    if size > TRANSACTION_BYTES_MAX:
        raise errors.PayloadTooLarge(
            f"the flow of {len(calls)} jobs", size, TRANSACTION_BYTES_MAX,
            "it is one transaction: make several flows of it, or pass large arguments as files",
        )  # fmt: skip
    return Plan(tuple(calls), len(end.jobs), end.shape)


def _expand(node: Node, before: _Link | None, nested: int) -> _Link:
    if nested > _NESTED_MAX:
        raise errors.UsageError(f"the flow nests parts over {_NESTED_MAX} deep: make it flatter")
    if isinstance(node, Leaf):
        return _expand_leaf(node, before)
    if isinstance(node, Parallel):
        links = [_expand(member, before, nested + 1) for member in node.members]
        shape = flows.list_of(link.shape for link in links)
        missing = next((link.dropped_by for link in links if link.dropped_by), "")
        jobs = [job for link in links for job in link.jobs]
        tasks = {id(task): task for link in links for task in link.tasks}
        return _Link(jobs, shape, dropped_by=missing, tasks=tuple(tasks.values()))
    link = before
    for number, part in enumerate(node.parts):
        inputs = link if not number or link is None else link._replace(policy=node.policy)
        link = _expand(part, inputs, nested + 1)
        if not link.jobs and inputs is not None and inputs.jobs:
            # An empty group has its result, an empty list, once the part before it has ended.
            shape = flows.skipping(len(inputs.jobs)) + link.shape
            link = _Link(inputs.jobs, shape, tasks=inputs.tasks)
    assert link is not None
    return link


def _expand_leaf(leaf: Leaf, before: _Link | None) -> _Link:
    job = _Job(leaf.call)
    name = leaf.call.name
    if leaf.takes and before is None:
        raise errors.UsageError(
            f"{name}: a step takes the result of the step before it, but the flow begins with it: "
            f"begin with task.call(...)"
        )
    if before is not None:
        job.inputs, job.policy = before.jobs, before.policy
        if leaf.takes:
            if before.dropped_by:
                raise errors.UsageError(
                    f"{name}: it takes the result of {before.dropped_by}, which keeps none "
                    f"(store_result=False): keep it, or put {name}.call(...) there"
                )
            _check_input(leaf.call.task, before)
            job.shape = before.shape
    task = leaf.call.task
    drops = task is not None and not task.store_result
    tasks = () if task is None else (task,)
    return _Link((job,), flows.ONE, dropped_by=name if drops else "", tasks=tasks)


def _check_input(task: TaskPort[Any] | None, before: _Link) -> None:
    """Refuse typed results for a parameter without a type: it would get their JSON."""
    if task is None or not task.takes_anything:
        return
    for source in before.tasks:
        if not source.gives_json:
            raise errors.UsageError(
                f"{task.name}: its parameter {task.signature.names[0]!r} has no type, and would "
                f"take what {source.name} returns as the JSON of it: annotate it with the type "
                f"that {source.name} is annotated to return"
            )


def _number_jobs(ends: Sequence[_Job]) -> list[_Job]:
    """Number the ends and all their inputs, direct or not; return them in order.

    Jobs that wait for the same others share one sequence of these, which is walked once: a group
    after a group does not take quadratic time.
    """
    jobs: list[_Job] = []
    waiting: dict[int, list[_Job]] = {}

    def place(some: Sequence[_Job]) -> None:
        for job in some:
            if job.index < 0:
                job.index = len(jobs)
                jobs.append(job)

    place(ends)
    for job in jobs:  # the list grows during the loop
        alike = waiting.setdefault(id(job.inputs), [])
        if not alike:
            place(job.inputs)
        alike.append(job)
    for alike in waiting.values():
        inputs = alike[0].inputs
        runs, unlocks = tuple(_runs(inputs)), tuple(job.index for job in alike)
        for job in alike:
            job.runs = runs
        for member in inputs:
            member.unlocks = tuple(sorted(member.unlocks + unlocks)) if member.unlocks else unlocks
    return jobs


def _linked_call(job: _Job, jobs: list[_Job], end: _Link) -> Call[Any]:
    call = _unkeyed(job.call)
    if job.index and not (job.unlocks or job.inputs or job.shape):
        return call
    chosen = call.chosen
    if job.inputs and (chosen.due_ns or (call.extras is not None and call.extras.due_ns)):
        raise errors.UsageError(
            f"{call.name}: a job that waits for others takes no delay or eta: give it to the first "
            f"job, or raise Snooze within the task"
        )
    if len(job.unlocks) > flows.UNLOCKS_MAX:
        raise errors.UsageError(
            f"{len(job.unlocks)} jobs of the flow wait for {call.name}, at most "
            f"{flows.UNLOCKS_MAX} may: put a step between the groups"
        )
    part = flows.FlowPart(
        place=job.index, inputs=job.runs, policy=job.policy, shape=job.shape,
        unlocks=job.unlocks,
        jobs=0 if job.index else len(jobs), ends=0 if job.index else len(end.jobs),
        result=b"" if job.index else end.shape,
    )  # fmt: skip
    extras = model.Extras() if call.extras is None else replace(call.extras)
    extras.flow = part
    if job.inputs:
        extras.due_ns, extras.due_is_wall = model.TIME_NS_MAX, True
    return call._with_extras(extras)


def _unkeyed(call: Call[Any]) -> Call[Any]:
    if call.extras is not None and call.extras.key is not None:
        raise errors.UsageError(
            f"{call.name}: a job of a flow takes no dedup key, for another job might hold it: use "
            f".options(key=None)"
        )
    return call


def _runs(inputs: Sequence[_Job]) -> Iterator[tuple[int, int]]:
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
