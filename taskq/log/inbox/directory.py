"""The directory of uploads: ``inbox/`` of a task log, its files and locks.

====================== =====================================================================
file                   what it is
====================== =====================================================================
``<upload>.<n>.part``  jobs, from any process; ``….tmp`` while it is being written
``<name>.json``        the manifest that publishes parts; nothing counts before it is there
``done/<name>.json``   what became of it, so that nobody publishes it again
``refused/…``          manifests and parts that do not read back, with the reason
``lock``               held while a manifest is added or removed; holds the last sequence number
====================== =====================================================================

A manifest is JSON with a CRC-32, as are its later forms in ``done`` and ``refused``. It names the
parts with their sizes and hashes. It is removed in this order, each step on disk before the next:
the file in ``done``, the parts, the manifest itself. So a manifest whose ``done`` file names the
same token is over, even after a kill, and nobody needs its records in the log any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from taskq.core import errors, model, parsing
from taskq.core.values import NamedTuple
from taskq.log.format import codec, frames
from taskq.log.machine import access, ports, threads
from taskq.log.segments.identity import check_writable
from taskq.log.state.uploads import INBOX, MANIFEST, waiting_uploads

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
        raise errors.UsageError(
            f"{what} name {name!r:.60} becomes a file's name: it may have ASCII letters, digits "
            f"and any of ._@=+- and must begin with a letter or digit"
        )
    if len(name) > limit:
        raise errors.UsageError(
            f"{what} name {name[:40]!r}… has {len(name)} characters, at most {limit}"
        )
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
        raise errors.UsageError(f"{name!r:.80} is no name of a part")
    for what, number, limit in (("jobs", jobs, JOBS_MAX), ("bytes", size, PART_BYTES_MAX)):
        if type(number) is not int or not 0 <= number <= limit:
            raise errors.UsageError(f"part {name}: {number!r:.40} {what}, it must be 0 to {limit}")
    if not _is_hex(digest, _SHA256_DIGITS):
        raise errors.UsageError(f"part {name}: {digest!r:.80} is no SHA-256 in hex")
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
        raise errors.UsageError(
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
            raise errors.UsageError("its token or its parts are none")
    except (KeyError, TypeError, ValueError, errors.TaskqError) as error:
        raise errors.UploadDamaged(f"{what}: no manifest ({error})") from error
    if upload.name != name:
        raise errors.UploadDamaged(f"{what}: it is that of {upload.name!r:.80}")
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
    except (KeyError, TypeError, ValueError, errors.TaskqError) as error:
        raise errors.UploadDamaged(f"{what}: not readable ({error})") from error


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_END:
        raise errors.UsageError(f"{value!r:.40} is no number of 64 bits")
    return value


def _seal(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, sort_keys=True)
    return b'{"crc32": %d, "upload": %s}\n' % (codec.crc32(text.encode()), text.encode())


def _open(data: bytes, what: str) -> dict[str, Any]:
    try:
        outer = parsing.parse_json(data)
        values: dict[str, Any] = outer["upload"]
        crc, version = outer["crc32"], values["version"]
        text = json.dumps(values, sort_keys=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.UploadDamaged(f"{what}: not readable ({error})") from error
    if crc != codec.crc32(text.encode()):
        raise errors.UploadDamaged(f"{what}: its CRC-32 does not fit")
    if version != VERSION:
        raise errors.FormatError(f"{what}: version {version!r:.20} is unknown: use a newer taskq")
    return values


_log: Final = threads.Reporter("taskq")
#: Uploads that wait at a time; more are refused until somebody adopts some.
WAITING_MAX: Final = 1_000
#: Batches of each stream (``stream@12``) whose files in ``done`` are kept.
STREAM_DONE_MAX: Final = 100
#: Other names whose files are kept, the latest; an older one may be published again.
DONE_MAX: Final = 10_000
_DONE_SLACK: Final = 1_000
#: Seconds without a write after which parts without a manifest are removed: their writer died.
STRAY_SECONDS: Final = 7 * 86_400.0
_SEQUENCE_BYTES: Final = 8


class Waiting(NamedTuple):
    """Uploads in the order of their publication, and files that are no manifest."""

    uploads: list[Upload]
    #: name of a manifest that does not read back -> why
    damaged: dict[str, str]


class Inbox:
    """The directory as one process sees it."""

    def __init__(self, disk: ports.Disk, clock: ports.Clock, path: str) -> None:
        self.disk = disk
        self._clock = clock
        self._log_path = path
        self.path = f"{path}/{INBOX}"
        self._held = -1

    def keep(self) -> None:
        """Make the directory and fsync its parent: an earlier process may have died in between.

        Raises:
            LogError: as ``check_writable``; nothing was written.
        """
        check_writable(self.disk, self._log_path)
        for name in (INBOX, f"{INBOX}/{DONE}", f"{INBOX}/{REFUSED}"):
            self.disk.make_directory(f"{self._log_path}/{name}")
        self.disk.sync_directory(self._log_path)
        self.disk.sync_directory(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        if self._held >= 0:
            yield self._held
            return
        descriptor = self.disk.open(f"{self.path}/lock", create=True)
        try:
            self.disk.lock(descriptor)
            yield descriptor
        finally:
            self.disk.close(descriptor)

    def try_hold(self) -> bool:
        """Take the lock for the next calls, until ``let_go``; False: another process has it."""
        descriptor = self.disk.open(f"{self.path}/lock", create=True)
        if self.disk.try_lock(descriptor):
            self._held = descriptor
            return True
        self.disk.close(descriptor)
        return False

    def let_go(self) -> None:
        self.disk.close(self._held)
        self._held = -1

    # -- publishing -------------------------------------------------------------------------------

    def publish(self, name: str, parts: Sequence[Part]) -> bool:
        """Let these parts be an upload of that name, durably; False: the name was used before.

        Raises:
            UsageError: a name is none, or there are too many parts.
            LogError: a part is missing or has another size, the name was refused before or is of a
                batch that is forgotten, or too many uploads wait.
        """
        check_publication_name(name)
        checked = tuple(check_part(part) for part in parts)
        if len({part.name for part in checked}) != len(checked) or len(checked) > PARTS_MAX:
            raise errors.UsageError(f"{name}: a part is named twice, or there are over {PARTS_MAX}")
        with self._locked() as lock:
            if self._was_published(name):
                # Its publisher or adopter may have died before that was on disk.
                self.disk.sync_directory(self.path)
                self.disk.sync_directory(f"{self.path}/{DONE}")
                return False
            self._check_published(name, checked)
            self.disk.sync_directory(self.path)
            sequence = max(self._last_sequence(lock) + 1, self._clock.wall_ns())
            upload = Upload(
                name, os.urandom(16).hex(), sequence, self._clock.wall_ns(),
                self._clock.steady_ns(), self.disk.boot_id(), self._last_segment(), checked,
            )  # fmt: skip
            ports.write_all(self.disk, lock, sequence.to_bytes(_SEQUENCE_BYTES, "little"), 0)
            self._write(f"{self.path}/{name}{MANIFEST}", encode_upload(upload))
            # Adopters look at the time of this file. It stands as published, even if this fails.
            with contextlib.suppress(OSError):
                self.disk.touch(f"{self.path}/lock")
        return True

    def _was_published(self, name: str) -> bool:
        return self._is_there(f"{name}{MANIFEST}") or self._is_there(f"{DONE}/{name}{MANIFEST}")

    def _check_published(self, name: str, parts: tuple[Part, ...]) -> None:
        place = stream_batch(name)
        if place is not None:
            kept = [batch for stream, batch in self._done_batches() if stream == place[0]]
            if len(kept) >= STREAM_DONE_MAX and place[1] < min(kept):
                raise errors.LogError(
                    f"{name}: whether it was published is not known any more: of {place[0]!r} the "
                    f"batches from {min(kept)} on are remembered. Give its jobs another name if "
                    f"they are new"
                )
        if self._is_there(f"{REFUSED}/{name}{MANIFEST}"):
            file = f"{self.path}/{REFUSED}/{name}{MANIFEST}"
            problem = self.refusal(name)
            raise errors.LogError(
                f"{name} was refused: {problem}. Remove {file} to publish it again"
            )
        if len(waiting_uploads(self.disk, self._log_path)) >= WAITING_MAX:
            raise errors.LogError(
                f"{self.path}: {WAITING_MAX} uploads wait: start a worker to adopt them"
            )
        for part in parts:
            size = self._size_of(part.name)
            if size != part.size_bytes:
                what = "is missing" if size is None else f"has {size} bytes"
                raise errors.UploadDamaged(
                    f"{self.path}/{part.name} {what}, {part.size_bytes} were written: "
                    f"nothing was published, write the upload again"
                )

    def discard(self, upload: str) -> int:
        """Remove the files of an upload, but for published ones; return how many."""
        check_upload_name(upload)
        with self._locked():
            published = self._published_parts()
            files = [
                file
                for file in self.disk.names(self.path)
                if upload_of(file) == upload and file not in published
            ]
            for file in files:
                self.disk.remove(f"{self.path}/{file}")
            if files:
                self.disk.sync_directory(self.path)
        return len(files)

    # -- what waits -------------------------------------------------------------------------------

    def waiting(self) -> Waiting:
        waiting = Waiting([], {})
        for name in waiting_uploads(self.disk, self._log_path):
            try:
                data = self._read(f"{name}{MANIFEST}")
                if data is None:  # it was adopted just now
                    continue
                file = f"{self.path}/{name}{MANIFEST}"
                waiting.uploads.append(decode_upload(data, name, file))
            except access.NotAFile as error:
                waiting.damaged[name] = f"{self.path}/{name}{MANIFEST}: {error.strerror}"
            except errors.UploadDamaged as error:
                waiting.damaged[name] = str(error)
        waiting.uploads.sort(key=lambda upload: (upload.sequence, upload.name))
        return waiting

    def published(self) -> Waiting:
        """Return the publications of ``waiting`` that stand for good: their jobs may be enqueued.

        Until a manifest's name is on disk, its publisher may take it back, or the power may go;
        were its jobs there by then, publishing it again would bring them twice.
        """
        with self._locked():
            self.disk.sync_directory(self.path)
            return self.waiting()

    def count_waiting(self) -> int:
        return len(waiting_uploads(self.disk, self._log_path))

    def signal(self) -> int | None:
        """Another number after each publication; None: nobody ever published."""
        return self.disk.modified_ns(f"{self.path}/lock")

    def is_done(self, upload: Upload) -> bool:
        data = self._read(f"{DONE}/{upload.name}{MANIFEST}")
        if data is None:
            return False
        try:
            ended = decode_ended(data, f"{self.path}/{DONE}/{upload.name}{MANIFEST}")
        except errors.UploadDamaged as error:
            _log.warning("%s", error)
            return False
        return ended.token == upload.token

    def refusal(self, name: str) -> str:
        """Return why an upload was refused; empty if it was not."""
        data = self._read(f"{REFUSED}/{name}{MANIFEST}")
        if data is None:
            return ""
        try:
            return decode_ended(data, name).problem
        except errors.TaskqError as error:
            return str(error)

    def ended(self, name: str) -> Ended | None:
        """Return what became of an upload; None: it waits still, or was forgotten.

        Raises:
            LogError: what was noted does not read.
        """
        for folder in (DONE, REFUSED):
            data = self._read(f"{folder}/{name}{MANIFEST}")
            if data is not None:
                return decode_ended(data, f"{self.path}/{folder}/{name}{MANIFEST}")
        return None

    # -- the end of an upload ---------------------------------------------------------------------

    def finish(self, upload: Upload, ended: Ended) -> None:
        """Note that all of it is in the log and on disk, and remove its files."""
        with self._locked():
            if self.is_done(upload):
                # Its writer may have died before its name was on disk.
                self.disk.sync_directory(f"{self.path}/{DONE}")
            else:
                self._write(f"{self.path}/{DONE}/{upload.name}{MANIFEST}", encode_ended(ended))
            for part in upload.parts:
                self.disk.remove(f"{self.path}/{part.name}")
            self.disk.remove(f"{self.path}/{upload.name}{MANIFEST}")
            self.disk.sync_directory(self.path)
            self._prune(upload.name)

    def refuse(self, name: str, parts: Sequence[Part], ended: Ended) -> None:
        """Set an upload aside that does not read back, with the reason."""
        with self._locked():
            self._write(f"{self.path}/{REFUSED}/{name}{MANIFEST}", encode_ended(ended))
            with contextlib.suppress(FileNotFoundError):
                aside = f"{self.path}/{REFUSED}/{name}.manifest"
                self.disk.rename(f"{self.path}/{name}{MANIFEST}", aside)
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    target = f"{self.path}/{REFUSED}/{part.name}"
                    self.disk.rename(f"{self.path}/{part.name}", target)
            self.disk.sync_directory(f"{self.path}/{REFUSED}")
            self.disk.sync_directory(self.path)

    def sweep(self) -> None:
        """Remove parts of writers that died, once they are a week old."""
        limit_ns = self._clock.wall_ns() - round(STRAY_SECONDS * model.SECOND_NS)
        with self._locked():
            published = self._published_parts()
            for file in self.disk.names(self.path):
                if upload_of(file) is None or file in published:
                    continue
                modified_ns = self.disk.modified_ns(f"{self.path}/{file}")
                if modified_ns is not None and modified_ns < limit_ns:
                    _log.warning("%s/%s was never published: removed", self.path, file)
                    self.disk.remove(f"{self.path}/{file}")

    def _prune(self, name: str) -> None:
        gone: list[str] = []
        place = stream_batch(name)
        if place is not None:
            batches = sorted(batch for stream, batch in self._done_batches() if stream == place[0])
            gone = [f"{place[0]}@{batch}" for batch in batches[:-STREAM_DONE_MAX]]
        names = [done for done in self._done_names() if stream_batch(done) is None]
        if len(names) > DONE_MAX + _DONE_SLACK:
            ages = {done: self._modified(f"{DONE}/{done}{MANIFEST}") for done in names}
            gone += sorted(names, key=ages.__getitem__)[:-DONE_MAX]
        for done in gone:
            self.disk.remove(f"{self.path}/{DONE}/{done}{MANIFEST}")

    # -- files ------------------------------------------------------------------------------------

    def _write(self, path: str, data: bytes) -> None:
        ports.write_file(self.disk, f"{path}{TEMPORARY}", data)
        self.disk.rename(f"{path}{TEMPORARY}", path)
        try:
            self.disk.sync_directory(path.rpartition("/")[0])
        except OSError:
            # Another sync may succeed and mean nothing: nobody may find what is not durable.
            with contextlib.suppress(OSError):
                self.disk.remove(path)
            raise

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = self.disk.open(f"{self.path}/{name}", write=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return self.disk.read(descriptor, MANIFEST_BYTES_MAX + 1, 0)
        finally:
            self.disk.close(descriptor)

    def _size_of(self, name: str) -> int | None:
        try:
            descriptor = self.disk.open(f"{self.path}/{name}", write=False)
        except FileNotFoundError:
            return None
        try:
            return self.disk.size(descriptor)
        finally:
            self.disk.close(descriptor)

    def _is_there(self, name: str) -> bool:
        return self.disk.modified_ns(f"{self.path}/{name}") is not None

    def _modified(self, name: str) -> int:
        return self.disk.modified_ns(f"{self.path}/{name}") or 0

    def _done_names(self) -> list[str]:
        names = self.disk.names(f"{self.path}/{DONE}")
        return [name.removesuffix(MANIFEST) for name in names if name.endswith(MANIFEST)]

    def _done_batches(self) -> list[tuple[str, int]]:
        places = (stream_batch(name) for name in self._done_names())
        return [place for place in places if place is not None]

    def _published_parts(self) -> set[str]:
        waiting = self.waiting()
        if waiting.damaged:
            # The parts of an unreadable manifest are not known: none is removed.
            return {name for name in self.disk.names(self.path) if PART in name}
        return {part.name for upload in waiting.uploads for part in upload.parts}

    def _last_sequence(self, lock: int) -> int:
        sequence = int.from_bytes(self.disk.read(lock, _SEQUENCE_BYTES, 0), "little")
        return (
            sequence if sequence <= model.TIME_NS_MAX else 0
        )  # else nobody wrote it: they begin at the time

    def _last_segment(self) -> int:
        names = self.disk.names(f"{self._log_path}/log")
        return max(
            (lsn for name in names if (lsn := frames.segment_lsn(name)) is not None), default=0
        )
