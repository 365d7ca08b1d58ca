"""The shards of an app: directories ``[prefix].[bits].[index]`` and ``shards.json``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from taskq.core import errors, parsing
from taskq.core.values import dataclass
from taskq.log.machine.disk import LocalDisk
from taskq.log.machine.ports import write_file
from taskq.log.segments.identity import read_identity

if TYPE_CHECKING:
    from taskq.calls.call import Call

#: Holds the number of shards of a root; written once, before the first shard.
FILE: Final = "shards.json"
FORMAT: Final = 1
BITS_MAX: Final = 10
_PREFIX: Final = re.compile(r"[a-zA-Z0-9_-]{0,64}")
_FILE_BYTES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Shards:
    """Several logs below a root: ``TaskQ(shards=Shards("data", prefix="jobs", bits=2))`` has four.

    Attributes:
        root: their parent directory.
        prefix: prefix of their names: letters, digits, ``_`` and ``-``; "" for none.
        bits: 1 to 10; the number of shards is 2 to that power.

    Raises:
        UsageError: the prefix has other characters, or the bits are out of range.
    """

    root: str | os.PathLike[str]
    prefix: str = ""
    bits: int = 1

    def __post_init__(self) -> None:
        try:
            os.fsdecode(self.root)
            fits = _PREFIX.fullmatch(self.prefix)
        except TypeError:
            raise errors.UsageError(
                f"shards are Shards(directory, prefix=text): not {self.root!r:.60} and "
                f"{self.prefix!r:.60}"
            ) from None
        if not fits:
            raise errors.UsageError(
                f"the prefix of shards is {self.prefix!r:.80}, it may have up to 64 letters, "
                f"digits, _ and -"
            )
        if not 1 <= parsing.whole(self.bits, "bits") <= BITS_MAX:
            raise errors.UsageError(f"bits of shards is {self.bits}, it must be 1 to {BITS_MAX}")

    @property
    def count(self) -> int:
        """Return how many there are."""
        return 1 << self.bits

    def names(self) -> list[str]:
        """Return their directories, by index."""
        head = f"{self.prefix}." if self.prefix else ""
        return [f"{head}{self.bits:x}.{index:03x}" for index in range(self.count)]

    def index_of(self, call: Call[Any]) -> int | None:
        """Return the shard that a call belongs to; None: any shard."""
        home = _home(call)
        if home is None:
            return None
        return self.index_by(*home)

    def index_by(self, first: bytes, second: bytes) -> int:
        """Return the shard of two texts."""
        data = len(first).to_bytes(2, "little") + first + len(second).to_bytes(2, "little") + second
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") & (self.count - 1)

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> Self | None:
        """Return the shards declared in a directory; None without a declaration.

        Raises:
            LogError: the file is not readable.
        """
        path = Path(root, FILE)
        try:
            with path.open("rb") as file:
                values = parsing.parse_json(file.read(_FILE_BYTES_MAX))
            if values["format"] != FORMAT:
                raise errors.LogError(
                    f"{path}: format {values['format']!r:.20} is unknown: use a newer taskq"
                )
            return cls(os.fspath(root), values["prefix"], values["bits"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise errors.refusal(str(path), error) from error
        except (ValueError, KeyError, TypeError, errors.UsageError) as error:
            raise errors.LogError(
                f"{path}: not readable ({error}); restore it from a backup"
            ) from error

    def settle_in(self, root: str) -> list[str]:
        """Return the paths of the shards below a root, and record their number in it.

        Raises:
            UsageError: the root has another number of shards.
            LogError: the directory cannot be used.
        """
        known = Shards.of(root)
        if known is None:
            self._write(root)
            known = Shards.of(root)
        if known is not None and (known.prefix, known.bits) != (self.prefix, self.bits):
            raise errors.UsageError(
                f"{root} has {known.count} shards, prefix={known.prefix!r} and bits={known.bits}: "
                f"write Shards(..., prefix={known.prefix!r}, bits={known.bits}). With "
                f"bits={self.bits} keys would be looked for where they are not; for another number "
                f"of shards take another root, and let workers empty this one"
            )
        return [str(Path(root, name)) for name in self.names()]

    def _write(self, root: str) -> None:
        document: dict[str, Any] = {"format": FORMAT, "prefix": self.prefix, "bits": self.bits}
        document["shards"] = dict(enumerate(self.names()))
        path, disk = Path(root, FILE), LocalDisk()
        own = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(disk, str(own), json.dumps(document, indent=2).encode() + b"\n")
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(own)  # the first process decides for all
            own.unlink()
            disk.sync_directory(root)
        except OSError as error:
            raise errors.refusal(str(path), error) from error


# All calls with one key belong to one shard, since a log checks a key only against its own jobs.
# The index is the low bits of BLAKE2b-64 of two texts, each preceded by its length (16 bits,
# little-endian). If the task has a limit, they are the task's name and the concurrency key (b""
# without one), since the limit counts these jobs; else the queue and the dedup key.
def _home(call: Call[Any]) -> tuple[bytes, bytes] | None:
    """Return the two texts that decide the call's shard; None: any shard."""
    extras, task = call.extras, call.task
    key = b"" if extras is None else extras.concurrency_key
    if key or (task is not None and task.limit is not None):
        return call.name.encode(), key
    if extras is None or extras.key is None:
        return None
    return call.chosen.queue.encode(), extras.key


def shard_with(paths: list[str], tag: str, lsn: int) -> int | None:
    for index, path in enumerate(paths):
        identity = read_identity(LocalDisk(), path)
        if identity is not None and identity.tag.takes(tag, lsn):
            return index
    return None
