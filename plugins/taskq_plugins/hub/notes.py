"""Small files of lines that a copy keeps: what was sealed, and what breaks were declared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from taskq.log.machine.ports import write_all, write_file

if TYPE_CHECKING:
    from taskq.log.machine.ports import Disk

_READ_BYTES: Final = 1024 * 1024


class Notes:
    """Lines of JSON, each durable when ``add`` returns.

    Attributes:
        lines: what is noted, oldest first.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.lines: list[dict[str, Any]] = []
        data = content(disk, path)
        size = 0
        for line in data.splitlines(keepends=True):
            try:
                values = json.loads(line)
            except ValueError:
                break
            if not (line.endswith(b"\n") and isinstance(values, dict)):
                break  # it was cut short, and never answered for
            self.lines.append(values)
            size += len(line)
        if size < len(data):
            self._cut(size)
        self._size = size

    def add(self, **values: Any) -> None:
        """Note one more."""
        line = json.dumps(values).encode() + b"\n"
        is_new = not self._size
        descriptor = self._disk.open(self._path, create=True)
        try:
            write_all(self._disk, descriptor, line, self._size)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
        if is_new:
            self._disk.sync_directory(self._path.rpartition("/")[0])
        self._size += len(line)
        self.lines.append(values)

    def keep(self, lines: list[dict[str, Any]]) -> None:
        """Let these be all, in one step."""
        if lines == self.lines:
            return
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        write_file(self._disk, f"{self._path}.tmp", data)
        self._disk.rename(f"{self._path}.tmp", self._path)
        self._disk.sync_directory(self._path.rpartition("/")[0])
        self.lines, self._size = lines, len(data)

    def _cut(self, size: int) -> None:
        descriptor = self._disk.open(self._path)
        try:
            self._disk.truncate(descriptor, size)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)


def content(disk: Disk, path: str) -> bytes:
    """What is in a file; nothing if it is not there."""
    try:
        descriptor = disk.open(path, write=False)
    except FileNotFoundError:
        return b""
    try:
        size = disk.size(descriptor)
        parts = [disk.read(descriptor, _READ_BYTES, at) for at in range(0, size, _READ_BYTES)]
        return b"".join(parts)
    finally:
        disk.close(descriptor)
