"""The arguments of a step: all of its task's but the first, which comes with the flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from taskq.arguments import ArgumentCodec
from taskq.call import Call
from taskq.core.errors import UsageError
from taskq.flowplan import Leaf
from taskq.flows import Flow, Step, group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskq.call import Options
    from taskq.connection import Connection
    from taskq.core.model import Extras
    from taskq.core.records import Flag
    from taskq.log.config import Packing
    from taskq.log.requests import EnqueueSpec
    from taskq.signature import Signature
    from taskq.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Rest = ParamSpec("Rest")
S = TypeVar("S")
X = TypeVar("X")


class StepArguments(ArgumentCodec):
    """Turns the further arguments of a function into payloads.

    Raises:
        UsageError: the function has no first parameter that could be passed by position.
    """

    def __init__(self, signature: Signature) -> None:
        if not signature.names:
            raise UsageError(
                f"{signature.task}: step() fills the first parameter, but there is none with a "
                f"name that takes a positional argument: {signature.signature}"
            )
        self._first = signature.names[0]
        super().__init__(signature)

    def validated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The values of the further parameters, as annotated.

        Raises:
            InvalidCall: the arguments do not fit the signature.
        """
        values = self.signature.bind((None, *args), kwargs)
        del values[self._first]
        try:
            checked: dict[str, Any] = self._validator.validate_python(values)
        except ValueError as error:
            raise self._invalid(error) from None
        return checked

    def _fields(self) -> dict[str, Any]:
        fields = super()._fields()
        del fields[self._first]
        return fields


class _Calls(Protocol[P, R_co]):
    """A task, as far as types go."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """See ``Enqueuer``."""
        ...

    @property
    def _step(self) -> Callable[..., Step[Any, R_co]]: ...


class _StepMaker:
    """Gives a task its ``step``.

    A descriptor: of a generic method, the type checker would infer the first parameter's type from
    what the step is passed to.
    """

    def __get__(
        self, task: _Calls[Concatenate[X, Rest], S], _: object = None
    ) -> Callable[Rest, Step[X, S]]:
        return task._step


class Composing(Generic[P, R]):
    """What makes parts of flows of a task and its options."""

    if TYPE_CHECKING:
        _task: Task[P, R]
        _connection: Connection
        _chosen: Options
        _flags: Flag
        _packing: Packing | None
        _extras: Extras | None
        spec: EnqueueSpec

        def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
            """See ``Enqueuer``."""
            ...

    #: ``step(...)``: a part of a flow; its first argument is what the part before it gives
    step = _StepMaker()

    def _step(self, *args: Any, **kwargs: Any) -> Step[Any, R]:
        """See ``step``.

        Raises:
            InvalidCall: the further arguments do not fit the task's signature.
            UsageError: the task has no first parameter, or makes keys of its arguments.
        """
        task, chosen = self._task, self._chosen
        if chosen.key is not None:
            raise UsageError(
                f"{task.name}: a job of a flow takes no dedup key, for another job might hold it: "
                f"use {task.name}.options(key=None).step(...)"
            )
        if callable(chosen.concurrency_key):
            raise UsageError(
                f"{task.name}: concurrency_key is made of the arguments, and a step's first one "
                f'comes later: use {task.name}.options(concurrency_key="text").step(...)'
            )
        codec = task.step_arguments
        limit = self._connection.packer.bodies.limit(self._packing)
        call: Call[R] = Call(
            name=task.name,
            task=task,
            body=codec.dump(codec.validated(args, kwargs), limit),
            flags=self._flags,
            chosen=chosen,
            spec=self.spec,
            extras=self._extras,
        )
        return Step(Leaf(call, takes=True))

    def map(self, values: Iterable[Any]) -> Flow[list[R]]:
        """A group of calls, one for each value; a tuple is taken for all of a call's arguments.

        Raises:
            InvalidCall: one of them does not fit; nothing was written.
        """
        call: Callable[..., Call[R]] = self.call
        calls = (call(*value) if isinstance(value, tuple) else call(value) for value in values)
        return group(calls)
