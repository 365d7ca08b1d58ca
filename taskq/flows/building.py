"""Jobs that follow one another: chains, groups, chords, and a task mapped over many values.

A flow is built from calls, frozen and typed, and enqueued as a whole: all of its jobs come into the
log in one transaction, so that none is lost, and none runs before its inputs have, whichever
process dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, Unpack, overload

from taskq.calls.call import Call, OptionChanges, Runnable
from taskq.calls.habits import STEPS, no_attribute
from taskq.connection.blocking import blocking
from taskq.core.errors import UsageError
from taskq.core.flows import Policy
from taskq.core.parsing import listed
from taskq.core.values import dataclass
from taskq.flows.handle import FlowHandle
from taskq.flows.plan import Chain, Group, Leaf, Node, Plan, begins_open, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq.calls.ports import AppPort, TaskPort
    from taskq.connection.connection import Connection

#: Parts that a flow's text names.
_SHOWN: Final = 5

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

#: What becomes of a job when one that it waits for failed.
OnFailure: TypeAlias = Literal["cancel", "run", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Stands for the result of a job that failed, where ``on_failure="run"``.

    Attributes:
        job_id: the job.
        reason: why it died; "cancelled" or "expired" if it never ran to an end.
        failed: tells it from other values in JSON.
    """

    job_id: str
    reason: str
    failed: Literal[True] = True


@dataclass(frozen=True, slots=True, eq=False)
class Flow(Runnable[R_co]):
    """Jobs that belong together and give an ``R``. Enqueue it as often as you like.

    Made by ``chain``, ``group``, ``chord`` and ``task.map``.
    """

    node: Node

    async def enqueue(self) -> FlowHandle[R_co]:
        """Put all of it into the log, as durably as the app says when this returns.

        Raises:
            UsageError: its jobs cannot wait for one another as asked; nothing was written.
            PayloadTooLarge: they are over TRANSACTION_BYTES_MAX together; nothing was written.
            LogError: the log could not be opened or written.
        """
        app = self._app()
        if app is None:
            return _empty(self)
        handle: FlowHandle[R_co] = await app.enqueue_flow(self)
        return handle

    enqueue_sync = blocking(enqueue)

    def _app(self) -> AppPort[Connection] | None:
        """Return the app of its tasks; None if it is no job at all.

        Raises:
            UsageError: none of them is known here, or they are of two apps: it has to be told.
        """
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
        raise UsageError("the flow knows no app: use app.enqueue_flow(flow)")

    def __repr__(self) -> str:
        return f"<Flow {_text(self.node)}>"


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[X_contra, R_co]):
    """A part of a flow that takes in an ``X`` and gives an ``R``: what ``task.step(...)`` returns.

    The first parameter of its task gets the result of the part before it.
    """

    node: Node

    if not TYPE_CHECKING:  # or the type checker would take every name for one of ours

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead of what only whole flows have."""
            raise no_attribute(self, "a step", name, STEPS, "step")

    def options(self, **changes: Unpack[OptionChanges]) -> Step[X_contra, R_co]:
        """Return a new step with these options changed.

        Raises:
            UsageError: an option is wrong, or the step is made of several.
        """
        if not isinstance(self.node, Leaf):
            raise UsageError("options are those of single steps: give them before you combine them")
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
    """Return one part after the other; a step takes in what the part before it gives.

    A ``Call`` in a later place only waits for that part. A chain that begins with a step is a step
    itself, to be used within another flow. ``on_failure`` is as for ``chord``.

    Raises:
        UsageError: a part is none.
    """
    if not parts:
        raise UsageError("chain() takes at least one part, such as task.call(...)")
    nodes = tuple(_node("chain", part) for part in parts)
    return _wrapped(Chain(nodes, _policy(on_failure)))


@overload
def group(members: Iterable[Runnable[R]], /) -> Flow[list[R]]: ...
@overload
def group(members: Iterable[Step[X, R]], /) -> Step[X, list[R]]: ...
@overload
def group(*members: Runnable[R]) -> Flow[list[R]]: ...
@overload
def group(*members: Step[X, R]) -> Step[X, list[R]]: ...


def group(*members: Any) -> Any:
    """Parts that run beside one another and give the list of their results, in this order.

    They are given one by one, or as one iterable. A group of steps is a step itself: each of them
    takes in the same value.

    Raises:
        UsageError: a part is none.
    """
    return _wrapped(Group(_members("group", members)))


@overload
def chord(
    members: Iterable[Runnable[R]],
    callback: Step[list[R | Failed], S],
    on_failure: Literal["run"],
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Runnable[R]],
    callback: Next[list[R], S],
    on_failure: Literal["cancel", "wait"] = ...,
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Runnable[Any]], callback: Runnable[S], on_failure: OnFailure = ...
) -> Flow[S]: ...
@overload
def chord(
    members: Iterable[Step[X, R]],
    callback: Next[list[R], S],
    on_failure: Literal["cancel", "wait"] = ...,
) -> Step[X, S]: ...


def chord(members: Any, callback: Any, on_failure: OnFailure = "cancel") -> Any:
    """Parts that run beside one another, and a step that takes in the list of their results.

    Args:
        members: calls or flows; a group is one member that gives a list.
        callback: a step, or what else is to run once all members have.
        on_failure: if a member dies, is cancelled or expires: "cancel" the callback and what waits
            for it; "run" it with a ``Failed`` in that member's place; or let it "wait" until the
            dead letter is requeued and succeeds (one that is cancelled, expired or purged never
            will: then it is cancelled).

    Raises:
        UsageError: a part is none.
    """
    node = Group(_members("chord", (members,)))
    return _wrapped(Chain((node, _node("chord", callback)), _policy(on_failure)))


def plan_of(flow: object) -> Plan:
    """Return the jobs of a flow; raises as ``make_plan``."""
    if not isinstance(flow, Flow):
        what = flow.name if isinstance(flow, Call) else f"{flow!r:.80}"
        remedy = "chain(...) makes one of what task.call(...) gives"
        if isinstance(flow, Step):
            remedy = "begin it with task.call(...)"
        raise UsageError(f"{what} is no flow that could be enqueued: {remedy}")
    return make_plan(flow.node)


def _empty(flow: Flow[R]) -> FlowHandle[R]:
    plan = plan_of(flow)
    return FlowHandle(None, (), plan.ends, plan.shape)


def _check_same_log(first: TaskPort[Any], other: TaskPort[Any]) -> None:
    if other.app.data_dir != first.app.data_dir:
        raise UsageError(
            f"{first.name} and {other.name} of this flow are tasks of two apps, and the workers of "
            f"one know nothing of the other's: name the one that is to run it, "
            f"app.enqueue_flow(flow)"
        )


def _members(where: str, members: tuple[Any, ...]) -> tuple[Node, ...]:
    if len(members) == 1 and not isinstance(members[0], Call | Flow | Step):
        try:
            members = tuple(members[0])
        except TypeError:
            raise UsageError(
                f"{where}() takes calls or an iterable of them, got {members[0]!r:.60}"
            ) from None
    return tuple(_node(where, member) for member in members)


def _node(where: str, part: object) -> Node:
    if isinstance(part, Call):
        return Leaf(part)
    if isinstance(part, Flow | Step):
        return part.node
    raise UsageError(
        f"{where}() takes task.call(...), task.step(...) and other flows, got {part!r:.60}"
    )


def _wrapped(node: Node) -> Flow[Any] | Step[Any, Any]:
    return Step(node) if begins_open(node) else Flow(node)


def _policy(on_failure: str) -> Policy:
    try:
        return Policy[on_failure.upper()]
    except (KeyError, AttributeError):
        raise UsageError(
            f'on_failure is {on_failure!r:.60}, it must be "cancel", "run" or "wait"'
        ) from None


def _text(node: Node) -> str:
    if isinstance(node, Leaf):
        return node.call.name
    if isinstance(node, Group):
        return f"({listed(map(_text, node.members), _SHOWN)})"
    return " → ".join(_text(part) for part in node.parts[:_SHOWN]) + (
        " …" if len(node.parts) > _SHOWN else ""
    )
