"""Payloads and results on their way into a log and out of it: compressed, or in files beside it.

Everything here may take its time, so none of it runs on the storage thread: callers pack a body
before they hand it over, and unpack what they were handed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from taskq.core.errors import PayloadTooLarge, TaskqError, command
from taskq.core.model import PAYLOAD_BYTES_MAX
from taskq.core.records import Flag
from taskq.log.config import MIN_FREE_BYTES, SPILL_HINT, TINY_DISK_PARTS, LogConfig
from taskq.log.format.bodies import compress, decompress, original_size

if TYPE_CHECKING:
    from taskq.core.views import JobView
    from taskq.log.config import Packing
    from taskq.log.requests import Delivery
    from taskq.log.segments.spill import Reference, Spill

#: Bodies up to this size are packed and unpacked where they are; it takes a millisecond at most.
QUICK_BYTES_MAX: Final = 64 * 1024
#: In lists and on terminals, larger payloads and results are left out.
LISTED_BYTES_MAX: Final = PAYLOAD_BYTES_MAX
#: What to do about a body over PAYLOAD_BYTES_MAX.
_SPILLED: Final = int(Flag.SPILLED)


class BodyStore:
    """The bodies of one log, for any number of threads.

    Args:
        path: the log's directory.
        config: what limits them.
        spill: the files for large ones; made for the directory unless given.
    """

    def __init__(self, path: str, config: LogConfig, spill: Spill | None = None) -> None:
        self.config = config
        self._path = path
        if spill is not None:
            self._spill = spill

    @cached_property
    def _spill(self) -> Spill:
        # Most logs have no large bodies.
        from taskq.log.segments.spill import Spill  # noqa: PLC0415

        return Spill(self._path)

    # -- into the log -----------------------------------------------------------------------------

    def limit(self, packing: Packing | None) -> int:
        """Largest body, in bytes as it is given, that may be stored."""
        return self.config.spill_bytes_max if packing and packing.spill else PAYLOAD_BYTES_MAX

    def check_size(self, size: int, packing: Packing | None, what: str) -> None:
        """Refuse a body that is too large; ``what`` it is called in the error.

        Raises:
            PayloadTooLarge: it is over the limit.
        """
        limit = self.limit(packing)
        if size > limit:
            spills = packing is not None and packing.spill
            remedy = "raise spill_bytes_max" if spills else SPILL_HINT
            raise PayloadTooLarge(what, size, limit, remedy)

    def pack(
        self, body: bytes, packing: Packing | None, what: str, *, is_new_job: bool = True
    ) -> tuple[bytes, int]:
        """Return the body as its record holds it, and the record's flags for it.

        A file that the record names survives a power loss when this returns. New jobs leave free
        on the disk what settling others needs.

        Raises:
            PayloadTooLarge: it is over the limit; ``what`` it is called there.
            AppendFailed: the disk refused the file.
        """
        self.check_size(len(body), packing, what)
        if packing is None:
            return body, 0
        stored, flags = body, 0
        # What could not be read again is not compressed.
        if len(body) <= self.config.decompressed_bytes_max:
            stored, flags = compress(body, packing.compress)
        if len(stored) > PAYLOAD_BYTES_MAX:
            stored = self._spill.put(stored, self._least_free if is_new_job else None)
            flags |= _SPILLED
        return stored, flags

    # -- out of it --------------------------------------------------------------------------------

    @staticmethod
    def is_quick(stored: bytes, flags: int) -> bool:
        """Return whether unpacking takes so little time that an event loop can do it."""
        return not flags & _SPILLED and original_size(stored, flags) <= QUICK_BYTES_MAX

    def unpack(self, stored: bytes, flags: int, what: str, limit: int | None = None) -> bytes:
        """Return the body as it was given; ``what`` it is called in errors.

        Its record tells its size, so what is too large is not read at all.

        Args:
            stored: what the record holds of it.
            flags: of the record.
            what: what it is called in errors.
            limit: most bytes that the caller has a use for; None for any number.

        Raises:
            SpillMissing: its file is gone.
            LogDamaged: it does not read back.
            PayloadTooLarge: it is over the ``limit``, spilled and over spill_bytes_max, or
                decompressed it would be over decompressed_bytes_max.
            CompressionUnavailable: it is compressed in a way that is not installed here.
        """
        reference = _reference(stored, what) if flags & _SPILLED else None
        if limit is not None:
            size = original_size(stored, flags) if reference is None else reference.size
            if size > limit:
                where = f"it is written out by: {command(self._path, 'export')}"
                if reference is not None:
                    packed = " compressed" if flags & ~_SPILLED else ""
                    where = f"it is{packed} in {self._spill.file_path(reference)}"
                raise PayloadTooLarge(what, size, limit, where)
        if reference is not None:
            if reference.size > self.config.spill_bytes_max:
                size, most = reference.size, self.config.spill_bytes_max
                raise PayloadTooLarge(what, size, most, "raise spill_bytes_max")
            stored = self._spill.get(stored, what)
        return decompress(stored, flags, self.config.decompressed_bytes_max, what)

    def payload(self, delivery: Delivery) -> bytes:
        """Return a job's payload as it was given; raises what ``unpack`` does."""
        return self.unpack(
            delivery.stored_payload, delivery.payload_flags, f"the payload of job {delivery.job_id}"
        )

    def open_view(self, view: JobView) -> JobView:
        """The view with payload and result as they were given; raises what ``unpack`` does."""
        if view.payload_flags:
            payload = self.unpack(view.payload, view.payload_flags, f"the payload of {_of(view)}")
            view = replace(view, payload=payload, payload_flags=0)
        if view.result_flags:
            result = self.unpack(
                view.result or b"", view.result_flags, f"the result of {_of(view)}"
            )
            view = replace(view, result=result, result_flags=0)
        return view

    def show_view(self, view: JobView, limit: int | None = None) -> JobView:
        """Do as ``open_view``, but leave out what does not read back or is over the limit.

        ``problem`` then says why.
        """
        if view.payload_flags:
            payload, problem = self._shown(
                view.payload, view.payload_flags, f"the payload of {_of(view)}", limit
            )
            view = replace(view, payload=payload or b"", payload_flags=0, problem=problem)
        if view.result_flags:
            result, problem = self._shown(
                view.result or b"", view.result_flags, f"the result of {_of(view)}", limit
            )
            problem = "; ".join(part for part in (view.problem, problem) if part)
            view = replace(view, result=result, result_flags=0, problem=problem)
        return view

    def list_views(self, views: list[JobView]) -> list[JobView]:
        """Return the views as lists show them: without what is larger than LISTED_BYTES_MAX."""
        return [self.show_view(view, LISTED_BYTES_MAX) for view in views]

    def _shown(
        self, stored: bytes, flags: int, what: str, limit: int | None
    ) -> tuple[bytes | None, str]:
        try:
            return self.unpack(stored, flags, what, limit), ""
        except TaskqError as error:
            return None, str(error)

    def _least_free(self, total_bytes: int) -> int:
        """Return bytes of the disk that new jobs must leave free."""
        given = self.config.min_free_bytes
        return min(MIN_FREE_BYTES, total_bytes // TINY_DISK_PARTS) if given is None else given


def _of(view: JobView) -> str:
    return f"job {view.job_id}"


def _reference(stored: bytes, what: str) -> Reference:
    from taskq.log.segments.spill import decode_reference  # noqa: PLC0415 - most logs have none

    return decode_reference(stored, what)
