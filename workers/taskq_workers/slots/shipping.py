"""Jobs sent to another process, and their outcomes sent back.

They are plain tuples of bytes and numbers: both ends need only the same version of taskq.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from taskq import Delivery, JobContext, Task, engine, hooks, values
from taskq.engine import Cause, Kind, Lane, Settlement, kinds
from taskq.hooks import encode_reason
from taskq.values import SECOND_NS, causes_in, is_a, set_causes
from taskq_workers.slots.outcomes import (
    ELSEWHERE_SECONDS,
    settle_bad_result,
    settle_failure,
    settle_unreadable,
)


class Shipment(values.NamedTuple):
    """A claimed job."""

    tag: engine.Tag
    job: int
    token: int
    epoch: int
    attempt: int
    priority: int
    #: key of its lane: queue and task
    lane_key: bytes
    #: its complete enqueue record
    record: bytes
    #: its original payload, if the record holds another form
    payload: bytes | None


class RemoteOutcome(values.NamedTuple):
    """End of a job; the parts of a ``Settlement`` that only the other process knows."""

    #: index among the jobs sent together
    number: int
    kind: int
    body: bytes | None
    delay_ns: int
    cause: int
    #: jobs to enqueue with its success
    children: tuple[hooks.Loose, ...]
    seconds: float
    #: exception of a failed job, pickled; empty if it cannot be
    error: bytes = b""


def ship(delivery: Delivery, payload: bytes | None) -> Shipment:
    """Return the job of a delivery; ``payload`` is the original if the record has another form."""
    lane = delivery.lane
    return Shipment(
        delivery.tag,
        delivery.job,
        delivery.token,
        delivery.epoch,
        delivery.attempt,
        lane.priority,
        lane.key,
        delivery.record,
        payload,
    )


class Shipped(Delivery):
    """A delivery in the other process; ``given`` is its payload if the record has another form."""

    given: bytes | None

    @property
    def payload(self) -> bytes:
        return self.stored_payload if self.given is None else self.given


class RemoteJob(JobContext):
    """A job that ran in another process; its children's ids are no longer awaited."""

    def resolve(self, answers: list[int | engine.Duplicate]) -> None: ...


_new: Final = tuple.__new__
#: Number of cached lanes.
_LANES_MAX: Final = 4096
#: A larger error is sent as text only.
_ERROR_BYTES_MAX: Final = 64 << 10


class Unpacker:
    """Makes deliveries from shipments; deliveries of one lane share it."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[bytes, int], Lane] = {}

    def delivery(self, job: Shipment) -> Shipped:
        kind = (job.lane_key, job.priority)
        lane = self._lanes.get(kind)
        if lane is None:
            if len(self._lanes) >= _LANES_MAX:
                self._lanes.clear()
            lane = self._lanes[kind] = Lane(0, job.lane_key, job.priority)
        fields = (job.tag, job.job, job.token, job.epoch, job.attempt, lane, job.record)
        delivery: Shipped = _new(Shipped, fields)
        delivery.given = job.payload
        return delivery


def pickle_error(error: BaseException) -> bytes:
    """Return the pickled error with its causes; empty if it is too large or cannot be pickled."""
    import pickle  # noqa: PLC0415 - most workers have no children

    for causes in (causes_in(error), []):
        # It is the user's class, and pickle drops causes.
        with contextlib.suppress(BaseException):
            body = pickle.dumps((error, causes))
            if len(body) <= _ERROR_BYTES_MAX:
                return body
    return b""


def error_of(outcome: RemoteOutcome) -> BaseException:
    """Return the job's exception, or a stand-in if its class is not available here."""
    if outcome.error:
        import pickle  # noqa: PLC0415 - as above

        # It is the user's class, and may not be importable here.
        with contextlib.suppress(BaseException):
            error, causes = pickle.loads(outcome.error)  # noqa: S301 - from our own child
            if is_a(error, BaseException):
                set_causes(causes)
                return error
    return RuntimeError((outcome.body or b"").decode("utf-8", "replace").partition("\n")[0])


def settlement_of(outcome: RemoteOutcome, delivery: Delivery) -> Settlement:
    kind, cause = Kind(outcome.kind), Cause(outcome.cause)
    return Settlement(kind, delivery, outcome.body, outcome.delay_ns, cause)


def remote_failure(
    number: int,
    task: Task[..., Any],
    delivery: Delivery,
    error: BaseException,
    seconds: float,
    *,
    called: bool,
) -> RemoteOutcome:
    """Return the end of a job that raised; ``called`` is false if its arguments were unreadable."""
    settlement = None if called else settle_unreadable(delivery, error)
    end = remote_outcome(number, settlement or settle_failure(task, delivery, error), seconds)
    return end._replace(error=pickle_error(error))


def remote_success(
    number: int, task: Task[..., Any], job: JobContext, value: object, seconds: float
) -> RemoteOutcome:
    delivery, packer = job.delivery, job.app.connection.packer
    try:
        body = task.encode_result(value)
    except BaseException as error:  # noqa: BLE001 - a result may raise what it likes when read
        return remote_outcome(number, settle_bad_result(task, delivery, value, error), seconds)
    children = tuple(packer.loose(pending.call) for pending, *_ in job.children or ())
    return remote_outcome(number, Settlement(kinds.SUCCESS, delivery, body), seconds, children)


def remote_release(number: int, delivery: Delivery, reason: str) -> RemoteOutcome:
    """Return the release of a job that only another worker may run; it uses up no attempt."""
    delay_ns = ELSEWHERE_SECONDS * SECOND_NS
    return remote_outcome(
        number, Settlement(kinds.RELEASE, delivery, encode_reason(reason), delay_ns), 0.0
    )


def remote_outcome(
    number: int, settlement: Settlement, seconds: float, children: tuple[hooks.Loose, ...] = ()
) -> RemoteOutcome:
    return RemoteOutcome(
        number,
        int(settlement.kind),
        settlement.body,
        settlement.delay_ns,
        int(settlement.cause),
        children,
        seconds,
    )
