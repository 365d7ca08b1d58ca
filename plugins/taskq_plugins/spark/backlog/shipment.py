"""What travels between driver and executors: chunks of jobs there, reports of their ends back.

Plain tuples of bytes and numbers, so that both ends may differ in everything but taskq's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from taskq.core.lanes import Lane
from taskq.log.requests import Delivery

if TYPE_CHECKING:
    from taskq.packing import Loose


class Shipment(NamedTuple):
    """One claimed job."""

    tag: str
    job: int
    token: int
    epoch: int
    attempt: int
    priority: int
    #: of its lane: queue and task
    lane_key: bytes
    #: its whole enqueue record
    record: bytes
    #: its payload as it was given, where the record holds it otherwise
    payload: bytes | None


class Chunk(NamedTuple):
    """The jobs of one partition."""

    #: ``module:app`` to import
    target: str
    #: the task log, which only executors on the driver's machine can reach
    data_dir: str
    #: how many async jobs run at a time
    concurrency: int
    jobs: tuple[Shipment, ...]


class Ended(NamedTuple):
    """How one job of a chunk ended; what of a ``Settlement`` the driver cannot know."""

    #: which of the chunk's jobs, from 0
    number: int
    kind: int
    body: bytes | None
    delay_ns: int
    cause: int
    #: jobs to enqueue with its success
    children: tuple[Loose, ...]
    seconds: float


class Report(NamedTuple):
    """What became of a chunk. Jobs that it does not name never began."""

    ended: tuple[Ended, ...] = ()
    #: the partition was run before, by an executor that died over it
    lost: bool = False
    #: why no job could be run here at all
    problem: str = ""


def ship(delivery: Delivery, payload: bytes | None) -> Shipment:
    """The job of a delivery; ``payload`` as it was given where the record holds it otherwise."""
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
    """A delivery as an executor has it.

    Attributes:
        given: its payload, where the record holds it otherwise.
    """

    given: bytes | None

    @property
    def payload(self) -> bytes:
        """The bytes that were enqueued."""
        return self.stored_payload if self.given is None else self.given


_new: Final = tuple.__new__


class Unpacker:
    """Makes deliveries of shipments; those of one lane share it."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[bytes, int], Lane] = {}

    def delivery(self, job: Shipment) -> Shipped:
        """What the driver claimed."""
        kind = (job.lane_key, job.priority)
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = Lane(0, job.lane_key, job.priority)
        fields = (job.tag, job.job, job.token, job.epoch, job.attempt, lane, job.record)
        delivery: Shipped = _new(Shipped, fields)
        delivery.given = job.payload
        return delivery
