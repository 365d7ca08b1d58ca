"""The arguments of a step: all of its task's but the first, which comes with the flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from taskq.calls.arguments import ArgumentCodec
from taskq.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskq.calls.call import Call
    from taskq.calls.signature import Signature
    from taskq.flows.building import Step

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
        """Return the values of the further parameters, as annotated.

        Raises:
            InvalidCall: the arguments do not fit the signature.
        """
        values = self.signature.bind((None, *args), kwargs)
        del values[self._first]
        return self._checked(values)

    def _fields(self) -> dict[str, Any]:
        fields = super()._fields()
        del fields[self._first]
        return fields


class _Calls(Protocol[P, R_co]):
    """A task, as far as types go."""

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """See ``Enqueuer``."""

    @property
    def _step(self) -> Callable[..., Step[Any, R_co]]: ...


class StepMaker:
    """Gives a task its ``step``.

    A descriptor: of a generic method, the type checker would infer the first parameter's type from
    what the step is passed to.
    """

    def __get__(
        self, task: _Calls[Concatenate[X, Rest], S], _: object = None
    ) -> Callable[Rest, Step[X, S]]:
        return task._step
