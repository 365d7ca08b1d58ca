"""The files of a tree with their sizes and hashes."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: Skipped directories, whose content can be generated again.
SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", "site-packages"})
#: Largest file that is sent or accepted.
FILE_BYTES_MAX: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the tree."""

    #: relative to the tree, with slashes
    path: str
    size: int
    #: SHA-256, in hexadecimal
    digest: str


@dataclass(slots=True)
class Scan:
    """The files of a tree, smallest first, and the skipped ones."""

    entries: list[Entry] = field(default_factory=list)
    #: links, devices, unreadable files, names that are not UTF-8, files over the limit
    skipped: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes in all files together."""
        return sum(entry.size for entry in self.entries)


def scan(root: Path) -> Scan:
    """Read the whole tree. Symbolic links are not followed."""
    result = Scan()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_DIRECTORIES)
        for name in sorted(names):
            file = Path(folder, name)
            entry = _entry(file, file.relative_to(root).as_posix())
            if entry is None:
                result.skipped.append(str(file))
            else:
                result.entries.append(entry)
    result.entries.sort(key=lambda entry: entry.size)
    return result


def _entry(file: Path, path: str) -> Entry | None:
    try:
        path.encode()
        if file.is_symlink() or not file.is_file() or file.stat().st_size > FILE_BYTES_MAX:
            return None
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return Entry(path, stream.tell(), digest)
    except (OSError, UnicodeEncodeError):
        return None
