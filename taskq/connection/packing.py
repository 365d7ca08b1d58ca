"""Packing what goes into one log and unpacking what comes out, off the event loop if it takes long.

``BodyStore`` does the work; what is added here is who does it, and with which of the options of
job, task, queue and log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from taskq.calls.call import Call, OptionChanges, Options, Put, spec_of
from taskq.connection.blocking import off_loop
from taskq.core.errors import UsageError
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag
from taskq.log.format.bodies import Compression, check_compression, check_size
from taskq.log.requests import Delivery, Item
from taskq.log.segments.bodystore import QUICK_BYTES_MAX, BodyStore

if TYPE_CHECKING:
    from taskq.core.views import JobView
    from taskq.log.config import LogConfig

#: A job that is not packed yet: with what becomes of its body, and the name of that in errors.
Loose: TypeAlias = tuple[Item, "Compression | None", str]

R = TypeVar("R")

_new: Final = tuple.__new__
_PLAIN: Final = Options()


class Packer:
    """The bodies of one log."""

    def __init__(self, path: str, config: LogConfig) -> None:
        self.config = config
        self.bodies = BodyStore(path, config)

    def packing(self, chosen: Options) -> Compression | None:
        """Return how the payload of a job with these options is packed; None: stored as it is."""
        return self.config.packing(chosen.queue, chosen.compress)

    # -- into the log -----------------------------------------------------------------------------

    def plain_item(self, call: Call[Any]) -> Item | None:
        """Return the call as the ports take it, or None if its payload must be packed first."""
        chosen = call.chosen
        if self.config.packing(chosen.queue, chosen.compress) is not None:
            return None
        if len(call.body) > PAYLOAD_BYTES_MAX:
            return None
        return call.spec, call.body, call.extras

    def plain_items(self, calls: list[Call[R]]) -> list[Item] | None:
        """Return the calls as the ports take them, or None if any payload must be packed first."""
        items: list[Item] = []
        for call in calls:
            item = self.plain_item(call)
            if item is None:
                return None
            items.append(item)
        return items

    def loose(self, call: Call[Any]) -> Loose:
        """Return the call as ``items`` takes it.

        Raises:
            PayloadTooLarge: its payload is over the limit.
        """
        packing, what = self.packing(call.chosen), f"{call.name}: the payload"
        check_size(what, call.body)
        return (call.spec, call.body, call.extras), packing, what

    def items_sync(self, given: Iterable[Loose]) -> list[Item]:
        """Return the jobs as the ports take them, their payloads packed here and now.

        Raises:
            PayloadTooLarge: one is over its limit.
        """
        items: list[Item] = []
        for (spec, body, extras), packing, what in given:
            stored, flags = self.bodies.pack(body, packing, what)
            items.append((spec.packed(flags), stored, extras))
        return items

    async def items(self, given: list[Loose]) -> list[Item]:
        """Do as ``items_sync``, on a thread if that takes long."""
        if sum(len(item[1]) for item, packing, _ in given if packing) <= QUICK_BYTES_MAX:
            return self.items_sync(given)
        return await off_loop(self.items_sync, given)

    async def result(
        self, body: bytes, packing: Compression | None, what: str
    ) -> tuple[bytes, int]:
        """Return a result as its record holds it, and the record's flags; raises as ``items``."""
        if packing is None or len(body) <= QUICK_BYTES_MAX:
            return self.bodies.pack(body, packing, what)
        return await off_loop(self.bodies.pack, body, packing, what)

    # -- out of it --------------------------------------------------------------------------------

    async def unpacked(self, stored: bytes, flags: int, what: str) -> bytes:
        """Return a body as it was given; raises what ``BodyStore.unpack`` does."""
        if not flags:
            return stored
        if self.bodies.is_quick(stored, flags):
            return self.bodies.unpack(stored, flags, what)
        return await off_loop(self.bodies.unpack, stored, flags, what)

    async def payload(self, delivery: Delivery) -> bytes:
        """Return a job's payload as it was given; raises what ``BodyStore.unpack`` does."""
        what = f"the payload of job {delivery.job_id}"
        return await self.unpacked(delivery.stored_payload, delivery.payload_flags, what)

    async def opened_view(self, view: JobView) -> JobView:
        """Return the view with payload and result as given; raises as ``BodyStore.unpack``."""
        if not (view.payload_flags or view.result_flags):
            return view
        return await off_loop(self.bodies.open_view, view)

    async def listed(self, views: list[JobView]) -> list[JobView]:
        """Return the views as lists show them; see ``BodyStore.list_views``."""
        if not any(view.payload_flags or view.result_flags for view in views):
            return views
        return await off_loop(self.bodies.list_views, views)

    def deliveries(self, claimed: list[Delivery]) -> list[Delivery]:
        """Return the deliveries, with payloads that can be read wherever they are."""
        if not any(delivery.payload_flags for delivery in claimed):
            return claimed
        return [
            self._readable(delivery) if delivery.payload_flags else delivery for delivery in claimed
        ]

    def _readable(self, delivery: Delivery) -> Delivery:
        packed = _new(PackedDelivery, delivery)
        packed.bodies = self.bodies
        return packed


class PackedDelivery(Delivery):
    """A delivery whose payload is compressed."""

    bodies: BodyStore

    @property
    def payload(self) -> bytes:
        """The bytes that were enqueued, read and decompressed each time that they are asked for.

        Raises:
            LogDamaged: they do not read back.
            PayloadTooLarge: decompressed they would be over decompressed_bytes_max.
            CompressionUnavailable: they are compressed in a way that is not installed here.
        """
        return self.bodies.payload(self)


def loose_put(job: Put, packer: Packer) -> Loose:
    """Return the job, checked, as ``Connection.pack`` takes it.

    Raises:
        UsageError: an option is wrong.
        PayloadTooLarge: the payload is over its limit.
    """
    if not isinstance(job, Put):
        raise UsageError(f"put_many() takes Put(payload=...) values, got {job!r:.60}")
    check_bytes("the payload", job.payload)
    if job.compress is not None:
        check_compression(job.compress)
    packing = packer.config.packing(job.queue, job.compress)
    check_size("the payload", job.payload)
    return _put_item(job), packing, "the payload"


def _put_item(job: Put) -> Item:
    spec = spec_of(job.queue, "", job.priority, job.attempts, Flag(0))
    is_keyed = not (job.key is job.window is job.until is None) or job.on_conflict != "first"
    if not (job.delay or job.headers or is_keyed) and job.expires is job.keep is None:
        return spec, job.payload, None
    changes: OptionChanges = {
        "delay": job.delay,
        "expires": job.expires,
        "key": job.key,
        "window": job.window,
        "until": job.until,
        "on_conflict": job.on_conflict,
        "headers": job.headers,
        "keep": job.keep,
    }
    return spec, job.payload, _PLAIN.changed(changes).fixed_extras("put")


def check_bytes(what: str, body: object) -> None:
    """Refuse a payload or result that is no bytes.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(body, bytes):
        raise UsageError(f"{what} is {body!r:.60}, it must be bytes")
