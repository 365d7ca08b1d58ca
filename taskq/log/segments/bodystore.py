"""Payloads and results on their way into a log and out of it: compressed or as given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskq.core.errors import PayloadTooLarge, TaskqError, command
from taskq.log.format.bodies import Compression, check_size, compress, decompress, original_size

if TYPE_CHECKING:
    from taskq.core.views import JobView
    from taskq.log import config, requests

#: Largest body that is packed and unpacked on the calling thread: a millisecond at most.
QUICK_BYTES_MAX: Final = 64 * 1024
#: Largest compressed payload or result in lists; larger ones are left out.
LISTED_BYTES_MAX: Final = 1024 * 1024


class BodyStore:
    """The bodies of one log, for any number of threads.

    Its calls may take long, so none runs on the storage thread: callers pack a body before they
    send it, and unpack received bodies.
    """

    def __init__(self, path: str, config: config.LogConfig) -> None:
        self.config = config
        self._path = path

    def pack(self, body: bytes, packing: Compression | None, what: str) -> tuple[bytes, int]:
        check_size(what, body)
        # A body too large to be decompressed stays as it is.
        if packing is None or len(body) > self.config.decompressed_bytes_max:
            return body, 0
        return compress(body, packing)

    @staticmethod
    def is_quick(stored: bytes, flags: int) -> bool:
        """Return whether unpacking is fast enough for an event loop."""
        return original_size(stored, flags) <= QUICK_BYTES_MAX

    def unpack(self, stored: bytes, flags: int, what: str, limit: int | None = None) -> bytes:
        """Return the original body.

        Its record has its size, so a body that is too large is not decompressed.

        Args:
            stored: the body in its record.
            flags: of the record.
            what: its name in errors.
            limit: most bytes that the caller can use; None for any number.

        Raises:
            LogDamaged: it does not decompress.
            PayloadTooLarge: it is over the ``limit``, or decompressed it would be over
                decompressed_bytes_max.
            CompressionUnavailable: its compression is not installed here.
        """
        if limit is not None and (size := original_size(stored, flags)) > limit:
            where = f"it is written out by: {command(self._path, 'export')}"
            raise PayloadTooLarge(what, size, limit, where)
        return decompress(stored, flags, self.config.decompressed_bytes_max, what)

    def payload(self, delivery: requests.Delivery) -> bytes:
        """Return a job's payload as given; raises as ``unpack``."""
        return self.unpack(
            delivery.stored_payload, delivery.payload_flags, f"the payload of job {delivery.job_id}"
        )

    def open_view(self, view: JobView) -> JobView:
        """Return the view with payload and result as given; raises as ``unpack``."""
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
        """Do as ``open_view``, but leave out bodies that are unreadable or over the limit.

        ``problem`` then has the reason.
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
