"""A whole log as batches, for ``taskq export`` and ``taskq sql``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from taskq.arrow.decoder import decode
from taskq.arrow.schema import DETAILS, Corrupt, Piece
from taskq.log.format import codec

if TYPE_CHECKING:
    from taskq.engine import LogReader


def batches_of(reader: LogReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return (schema, batches) of every record up to the reader's known end, as it reads them.

    The device is called what the directory is.

    Raises:
        LogError: a segment is missing, unreadable or another one.
        FormatError: a newer taskq wrote the log.
    """
    return DETAILS, _batches(reader)


def _batches(reader: LogReader) -> Iterator[pa.RecordBatch]:
    journal = reader.journal
    end, files, identity = journal.end(), journal.files, journal.identity
    device = Path(journal.path).resolve().name
    cursor = journal.start()
    segment: int | None = cursor.segment
    while segment is not None:
        size = end.offset if segment == end.segment else files.size(segment)
        path = files.file_path(segment)
        if size > codec.SEGMENT_HEADER.size:
            piece = Piece(path, device, str(identity.log_id), identity.tag, segment, 0, size)
            yield from decode(piece, DETAILS, corrupt=Corrupt.SKIP)
        segment = files.after(segment, end.segment)
