"""What a run undoes when its job fails for good or is cancelled: steps, the newest first."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from taskq.connection.blocking import run
from taskq.core.folds.steps import Form, pack_waits
from taskq.core.retry import exponential
from taskq.core.values import NamedTuple
from taskq.durable.attempt import Suspended, undoing_here
from taskq.durable.stepping import StepPolicy, summary
from taskq.durable.waiting import Waiting
from taskq.log.decide.ends import UNDO

if TYPE_CHECKING:
    from collections.abc import Callable

_log: Final = logging.getLogger("taskq")
#: Of a step that undoes, unless it has another.
_POLICY: Final = StepPolicy(exponential(attempts=10), None)


class Undone(NamedTuple):
    """The end of a job whose steps were undone; with a ``kind`` of 0 what that waits for."""

    kind: int
    cause: int
    body: str | bytes


class Undo:
    """A block whose work is undone by a step if the job fails for good or is cancelled in it."""

    def __init__(
        self,
        here: Run,
        name: str,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        policy: StepPolicy | None,
    ) -> None:
        self._here = here
        self.name = name
        self.number = here.number(name, Form.UNDO, fn)
        self.call = fn, args, kwargs, policy or _POLICY

    async def __aenter__(self) -> None:
        """Note the step in the log; from now on it runs if the job ends badly."""
        await self._here.enter(self)

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Forget it, if the block has done what it should."""
        if error is None:
            self._here.undos.remove(self)

    def __enter__(self) -> None:
        """Do as ``async with`` in a task that runs in a thread."""
        run(self._here.enter(self))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Forget it, if the block has done what it should."""
        if error is None:
            self._here.undos.remove(self)


class Run(Waiting):
    """An attempt that undoes what it did.

    Attributes:
        undos: what it is to undo, should the job end badly now, the newest last.
    """

    def __init__(self, *job: Any, **options: Any) -> None:
        super().__init__(*job, **options)
        self.undos: list[Undo] = []

    async def enter(self, undo: Undo) -> None:
        """Note that the job may have to undo something."""
        title = undo.name, undo.number
        self._check_goes_on()
        await self._loaded()
        if title not in self._registered:
            await self._stop_if_unwinding()
            await self._record(Form.UNDO, *title)
            self._registered.add(title)
        self._unasked.discard(title)
        self.undos.append(undo)

    def unwinds(self, *, is_end: bool) -> bool:
        """Return whether steps are to be undone before the job ends, or waits again."""
        if self.unwinding is not None:
            return is_end or self.suspended
        return is_end and bool(self.undos)

    async def undo(self, kind: int, cause: int, reason: str) -> Undone:
        """Undo, the newest first, and return how the job ends; by default as given.

        A step that fails for good is named in the reason, and those before it are undone still.
        """
        token = undoing_here.set(True)
        notes = []
        try:
            if self.unwinding is None:
                self.unwinding = {"kind": kind, "cause": cause, "reason": reason}
                await self._record(Form.UNDOING, UNDO, 1, json.dumps(self.unwinding).encode())
            self._waits.clear()
            for undo in reversed(self.undos):
                title = f"{undo.name}#{undo.number}"
                fn, args, kwargs, policy = undo.call
                try:
                    await self.step(undo.name, undo.number, fn, args, kwargs, policy)
                    notes.append(f"undone: {title}")
                except Exception as error:  # noqa: BLE001 - the others are undone still
                    _log.exception("job %s: %s could not be undone", self._job.id, title)
                    notes.append(f"not undone: {title} ({summary(error)})")
        except Suspended:
            return Undone(0, 0, pack_waits(self._waits.values()))
        finally:
            undoing_here.reset(token)
        why = self.unwinding
        return Undone(why["kind"], why["cause"], "\n".join(filter(None, [why["reason"], *notes])))
