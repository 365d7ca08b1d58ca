"""What ends an attempt from outside: its soft time limit, and the death of its process."""

from __future__ import annotations

from asyncio import CancelledError


class SoftTimeout(TimeoutError, CancelledError):
    """Raised inside a task once its ``soft_timeout`` is over, so that it can clean up and end.

    What the task raises then is judged as any failure is; what it returns is its result. The hard
    ``timeout`` still holds.

    A ``CancelledError`` besides, since ``asyncio.TaskGroup`` and ``asyncio.wait_for`` only take
    that for a reason to end what they started: by any other error it would be left running.
    """

    def __init__(self, message: str = "the task's soft_timeout is over") -> None:
        super().__init__(message)


class ChildDied(RuntimeError):
    """The child process of a job ended under it: a crash, ``os._exit``, or no memory left.

    It costs the job one attempt, and no other job anything.
    """
