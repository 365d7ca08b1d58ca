"""What travels between driver and executors: chunks of jobs there, reports of their ends back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from taskq_workers.slots.shipping import Ended, Shipment


class Chunk(NamedTuple):
    """The jobs of one partition."""

    #: ``module:app`` to import
    target: str
    #: the task log, which only executors on the driver's machine can reach
    data_dir: str
    #: how many async jobs run at a time
    concurrency: int
    jobs: tuple[Shipment, ...]
    #: modules to import besides, for the tasks in them
    include: tuple[str, ...] = ()


class Report(NamedTuple):
    """What became of a chunk. Jobs that it does not name never began."""

    ended: tuple[Ended, ...] = ()
    #: the partition was run before, by an executor that died over it
    lost: bool = False
    #: why no job could be run here at all
    problem: str = ""
