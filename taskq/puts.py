"""One job of the layer below tasks: bytes and options, as a caller of ``TaskLog`` gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict

from taskq.call import Options, spec_of
from taskq.core.errors import UsageError
from taskq.core.model import ATTEMPTS_DEFAULT, PRIORITY_DEFAULT
from taskq.core.records import Flag
from taskq.log.bodies import check_storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from taskq.call import OnConflict, OptionChanges, Until
    from taskq.core.durations import Duration
    from taskq.log.bodies import Compression
    from taskq.packing import Item, Loose, Packer


class PutOptions(TypedDict, total=False):
    """What ``TaskLog.put`` takes beside the payload."""

    #: name of the queue
    queue: str
    #: 0 to 9, higher first
    priority: int
    #: not before so long from now
    delay: Duration
    #: give up unless it ran by then: a duration, or a datetime with a time zone
    expires: Duration | datetime | None
    #: small strings that travel with the job
    headers: Mapping[str, str]
    #: one job at a time may hold it in the queue
    key: str | bytes | None
    #: how long the key is held; None: until the job is settled
    window: Duration | None
    #: "settled", with a window: hold the key until both, window and job, are over
    until: Until | None
    #: if the key is held: "first" answers with the job that holds it, "replace" takes the key over
    #: unless that job runs (one that waits is cancelled), "raise" raises ``DuplicateKey``
    on_conflict: OnConflict
    #: how often the job may be claimed; 0 for no limit
    attempts: int
    #: how long the job and its result are kept after its end; None: as its queue or log says
    keep_result: Duration | None
    #: how the payload is compressed; None: as its queue or log says
    compress: Compression | None
    #: whether a larger one may go to a file; None: as its queue or log says
    spill: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One job of ``put_many``; the words are those of ``PutOptions``."""

    payload: bytes
    queue: str = "default"
    priority: int = PRIORITY_DEFAULT
    delay: Duration = 0
    expires: Duration | datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | bytes | None = None
    window: Duration | None = None
    until: Until | None = None
    on_conflict: OnConflict = "first"
    attempts: int = ATTEMPTS_DEFAULT
    keep_result: Duration | None = None
    compress: Compression | None = None
    spill: bool | None = None


_PLAIN: Final = Options()


def loose_put(job: Put, packer: Packer) -> Loose:
    """The job, checked, as ``Connection.pack`` takes it.

    Raises:
        UsageError: an option is wrong.
        PayloadTooLarge: the payload is over its limit.
    """
    if not isinstance(job, Put):
        raise UsageError(f"put_many() takes Put(payload=...) values, got {job!r:.60}")
    check_bytes("the payload", job.payload)
    check_storage(job.compress, job.spill)
    packing = packer.config.packing(job.queue, job.compress, job.spill)
    packer.bodies.check_size(len(job.payload), packing, "the payload")
    return _item(job), packing, "the payload"


def _item(job: Put) -> Item:
    spec = spec_of(job.queue, "", job.priority, job.attempts, Flag(0))
    is_keyed = not (job.key is job.window is job.until is None) or job.on_conflict != "first"
    if not (job.delay or job.headers or is_keyed) and job.expires is job.keep_result is None:
        return spec, job.payload, None
    changes: OptionChanges = {
        "delay": job.delay,
        "expires": job.expires,
        "key": job.key,
        "window": job.window,
        "until": job.until,
        "on_conflict": job.on_conflict,
        "headers": job.headers,
        "keep_result": job.keep_result,
    }
    return spec, job.payload, _PLAIN.changed(changes).fixed_extras("put")


def check_bytes(what: str, body: object) -> None:
    """Refuse a payload or result that is no bytes.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(body, bytes):
        raise UsageError(f"{what} is {body!r:.60}, it must be bytes")
