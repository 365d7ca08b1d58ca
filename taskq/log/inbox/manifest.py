"""The manifests of an inbox: what publishes an upload, and what became of it.

A manifest (``inbox/<name>.json``) names the parts with their sizes and hashes. It is JSON with a
CRC-32, as is what it becomes: ``inbox/done/<name>.json``, or ``inbox/refused/<name>.json``.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from taskq.core.errors import FormatError, TaskqError, UploadDamaged, UsageError
from taskq.core.parsing import parse_json
from taskq.core.values import NamedTuple
from taskq.log.format import codec

DONE: Final = "done"
REFUSED: Final = "refused"
PART: Final = ".part"
TEMPORARY: Final = ".tmp"
#: Format of the files of an upload; another one is an error that names it.
VERSION: Final = 1
PARTS_MAX: Final = 10_000
PART_BYTES_MAX: Final = 2**40
JOBS_MAX: Final = 2**40
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
#: Longest name of an upload or a publication, in characters.
UPLOAD_CHARACTERS_MAX: Final = 120
NAME_CHARACTERS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@=+-]*", re.ASCII)
_PART_NAME: Final = re.compile(
    r"(?P<upload>[A-Za-z0-9][A-Za-z0-9._@=+-]{0,119})\.[0-9a-f]{16}\.part", re.ASCII
)
_STREAM: Final = re.compile(r"(?P<stream>.+)@(?P<batch>0|[1-9][0-9]{0,17})", re.ASCII)
_HEX: Final = re.compile(r"[0-9a-f]+", re.ASCII)
_SHA256_DIGITS: Final = 64
_ID_DIGITS: Final = 32
_NUMBER_END: Final = 2**64


class Part(NamedTuple):
    """A part as a manifest names it; it fits into JSON."""

    #: of its file, without a folder
    name: str
    jobs: int
    size_bytes: int
    #: of the whole file, in hex
    sha256: str


class Upload(NamedTuple):
    """Parts that were published together under a name: the content of a manifest.

    Attributes:
        token: of this publication and no other, 32 hex digits; ADOPTED records name it.
        sequence: uploads are adopted in the order of these.
        published_ns, steady_ns, boot: when, by wall time and by the steady clock of that boot.
        from_lsn: its ADOPTED records are in the segment of this lsn, or later ones.
    """

    name: str
    token: str
    sequence: int
    published_ns: int
    steady_ns: int
    boot: int
    from_lsn: int
    parts: tuple[Part, ...]

    @property
    def jobs(self) -> int:
        return sum(part.jobs for part in self.parts)

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.token)


class Ended(NamedTuple):
    """End of an upload.

    Attributes:
        adopted: jobs that it brought; ``duplicates`` were left out, since their keys were held.
        first_lsn, next_lsn: they are somewhere between, 0 if there are none.
        problem: why it was refused, "" if it was not.
    """

    name: str
    token: str
    jobs: int
    adopted: int
    duplicates: int
    first_lsn: int
    next_lsn: int
    ended_ns: int
    problem: str = ""


# -- names ----------------------------------------------------------------------------------------


def check_upload_name(name: str, what: str = "upload", limit: int = UPLOAD_CHARACTERS_MAX) -> str:
    """Return the name, if files can be called so.

    Raises:
        UsageError: it is not one; the message says why.
    """
    if not _NAME.fullmatch(str(name)):
        raise UsageError(
            f"{what} name {name!r:.60} becomes a file's name: it may have ASCII letters, digits "
            f"and any of ._@=+- and must begin with a letter or digit"
        )
    if len(name) > limit:
        raise UsageError(f"{what} name {name[:40]!r}… has {len(name)} characters, at most {limit}")
    return name


def check_publication_name(name: str) -> str:
    return check_upload_name(name, "publication", NAME_CHARACTERS_MAX)


def upload_of(file: str) -> str | None:
    """Return the upload that a part's file belongs to, also while it is written; None: no part."""
    match = _PART_NAME.fullmatch(file.removesuffix(TEMPORARY))
    return match["upload"] if match is not None else None


def stream_batch(name: str) -> tuple[str, int] | None:
    match = _STREAM.fullmatch(name)
    return (match["stream"], int(match["batch"])) if match is not None else None


def check_part(part: Part) -> Part:
    """Return the part, if there can be such a one.

    Raises:
        UsageError: a field of it is not what it must be.
    """
    name, jobs, size, digest = part
    if _PART_NAME.fullmatch(str(name)) is None:
        raise UsageError(f"{name!r:.80} is no name of a part")
    for what, number, limit in (("jobs", jobs, JOBS_MAX), ("bytes", size, PART_BYTES_MAX)):
        if type(number) is not int or not 0 <= number <= limit:
            raise UsageError(f"part {name}: {number!r:.40} {what}, it must be 0 to {limit}")
    if not _is_hex(digest, _SHA256_DIGITS):
        raise UsageError(f"part {name}: {digest!r:.80} is no SHA-256 in hex")
    return Part(str(name), jobs, size, digest)


def _is_hex(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and bool(_HEX.fullmatch(value))


# -- manifests ------------------------------------------------------------------------------------


def encode_upload(upload: Upload) -> bytes:
    """Return a manifest.

    Raises:
        UsageError: it would be too large.
    """
    values = upload._asdict() | {"version": VERSION, "parts": [list(part) for part in upload.parts]}
    data = _seal(values)
    if len(data) > MANIFEST_BYTES_MAX:
        raise UsageError(
            f"{upload.name}: {len(upload.parts)} parts are too many, write larger ones"
        )
    return data


def decode_upload(data: bytes, name: str, what: str) -> Upload:
    """Read the manifest of that name; ``what`` is its file's name in errors.

    Raises:
        UploadDamaged: it is not a manifest.
        FormatError: a newer taskq wrote it.
    """
    values = _open(data, what)
    try:
        parts = tuple(check_part(Part(*fields)) for fields in values["parts"])
        numbers = (_number(values[field]) for field in Upload._fields[2:-1])
        upload = Upload._make((values["name"], values["token"], *numbers, parts))
        if not _is_hex(upload.token, _ID_DIGITS) or len(parts) > PARTS_MAX:
            raise UsageError("its token or its parts are none")
    except (KeyError, TypeError, ValueError, TaskqError) as error:
        raise UploadDamaged(f"{what}: no manifest ({error})") from error
    if upload.name != name:
        raise UploadDamaged(f"{what}: it is that of {upload.name!r:.80}")
    return upload


def encode_ended(ended: Ended) -> bytes:
    return _seal(ended._asdict() | {"version": VERSION})


def decode_ended(data: bytes, what: str) -> Ended:
    """Return the same, read.

    Raises:
        UploadDamaged: it is not a manifest.
        FormatError: a newer taskq wrote it.
    """
    values = _open(data, what)
    try:
        numbers = (_number(values[field]) for field in Ended._fields[2:-1])
        texts = (str(values[field]) for field in ("name", "token", "problem"))
        name, token, problem = texts
        return Ended._make((name, token, *numbers, problem))
    except (KeyError, TypeError, ValueError, TaskqError) as error:
        raise UploadDamaged(f"{what}: not readable ({error})") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_END:
        raise UsageError(f"{value!r:.40} is no number of 64 bits")
    return value


def _seal(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, sort_keys=True)
    return b'{"crc32": %d, "upload": %s}\n' % (codec.crc32(text.encode()), text.encode())


def _open(data: bytes, what: str) -> dict[str, Any]:
    try:
        outer = parse_json(data)
        values: dict[str, Any] = outer["upload"]
        crc, version = outer["crc32"], values["version"]
        text = json.dumps(values, sort_keys=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UploadDamaged(f"{what}: not readable ({error})") from error
    if crc != codec.crc32(text.encode()):
        raise UploadDamaged(f"{what}: its CRC-32 does not fit")
    if version != VERSION:
        raise FormatError(f"{what}: version {version!r:.20} is unknown: use a newer taskq")
    return values
