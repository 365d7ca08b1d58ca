"""Payloads and results on their way into a log and out of it: compressed or as given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.core.errors import PayloadTooLarge, TaskqError, command
from taskq.log.format.bodies import Compression, check_size, compress, decompress, original_size

if TYPE_CHECKING:
    from taskq.core.views import JobView
    from taskq.log import config, requests

#: Bodies up to this size are packed and unpacked where they are; it takes a millisecond at most.
QUICK_BYTES_MAX: Final = 64 * 1024
#: In lists, larger compressed payloads and results are left out.
LISTED_BYTES_MAX: Final = 1024 * 1024


class BodyStore:
    """The bodies of one log, for any number of threads.

    Everything here may take its time, so none of it runs on the storage thread: callers pack a body
    before they hand it over, and unpack what they were handed.
    """

    def __init__(self, path: str, config: config.LogConfig) -> None:
        self.config = config
        self._path = path

    def pack(self, body: bytes, packing: Compression | None, what: str) -> tuple[bytes, int]:
        check_size(what, body)
        # A body that is too large to decompress again stays as it is.
        if packing is None or len(body) > self.config.decompressed_bytes_max:
            return body, 0
        return compress(body, packing)

    @staticmethod
    def is_quick(stored: bytes, flags: int) -> bool:
        """Return whether unpacking takes so little time that an event loop can do it."""
        return original_size(stored, flags) <= QUICK_BYTES_MAX

    def unpack(self, stored: bytes, flags: int, what: str, limit: int | None = None) -> bytes:
        """Return the original body; ``what`` names it in errors.

        Its record holds its size: a body that is too large is not decompressed.

        Args:
            stored: the body as the record holds it.
            flags: of the record.
            what: its name in errors.
            limit: most bytes that the caller has a use for; None for any number.

        Raises:
            LogDamaged: it does not read back.
            PayloadTooLarge: it is over the ``limit``, or decompressed it would be over
                decompressed_bytes_max.
            CompressionUnavailable: it is compressed in a way that is not installed here.
        """
        if limit is not None and (size := original_size(stored, flags)) > limit:
            where = f"it is written out by: {command(self._path, 'export')}"
            raise PayloadTooLarge(what, size, limit, where)
        return decompress(stored, flags, self.config.decompressed_bytes_max, what)

    def payload(self, delivery: requests.Delivery) -> bytes:
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
        return [self.show_view(view, LISTED_BYTES_MAX) for view in views]

    def _shown(
        self, stored: bytes, flags: int, what: str, limit: int | None
    ) -> tuple[bytes | None, str]:
        try:
            return self.unpack(stored, flags, what, limit), ""
        except TaskqError as error:
            return None, str(error)


def _of(view: JobView) -> str:
    return f"job {view.job_id}"
