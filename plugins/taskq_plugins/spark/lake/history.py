"""Reading versions back from their manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskq_plugins.spark.lake.errors import LakeDamaged, LakeError
from taskq_plugins.spark.lake.manifest import FULL_EVERY, SIZE_MAX, Manifest, Told, decode, follow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DIGITS: Final = 20
_SUFFIX: Final = ".json"
#: Between listing and reading, a manifest may go only when a newer one has come.
_TRIES: Final = 5


def manifest_path(directory: Path, version: int) -> Path:
    """Where a version's manifest is."""
    return directory / f"{version:0{_DIGITS}d}{_SUFFIX}"


def versions(directory: Path) -> list[int]:
    """The versions whose manifests are kept, rising.

    Raises:
        LakeDamaged: the directory is missing.
    """
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError as error:
        raise LakeDamaged(directory, "is missing") from error
    stems = [name[:_DIGITS] for name in names if name[_DIGITS:] == _SUFFIX]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def full_before(version: int) -> int:
    """The version whose manifest a reader of ``version`` starts from."""
    return max(version - (version - 1) % FULL_EVERY, 1)


class History:
    """The manifests of one lake; what was read last is kept, so that following on is cheap."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last = Manifest()

    def newest(self) -> Manifest:
        """The last version that was committed, 0 for an empty lake.

        Raises:
            LakeDamaged: a manifest is missing or not as written.
            LakeFormatError: a newer taskq wrote one.
        """
        for left in reversed(range(_TRIES)):
            there = versions(self._directory)
            if not there:
                return Manifest()
            try:
                self._last = self._read(there[-1], there)
            except FileNotFoundError as error:
                if not left:
                    raise LakeDamaged(self._directory, "changes faster than it reads") from error
            else:
                break
        return self._last

    def at(self, version: int) -> Manifest:
        """A version whose manifest is still kept.

        Raises:
            LakeError: it is not.
        """
        there = versions(self._directory)
        if version not in there:
            kept = f"{there[0]} to {there[-1]}" if there else "none"
            raise LakeError(f"{self._directory}: there is no version {version}; kept are {kept}")
        return self._read(version, there)

    def since(self, moment_ns: int) -> Iterator[Manifest]:
        """The versions that were the newest at that moment or later, rising.

        Raises:
            LakeDamaged: a manifest is missing or not as written.
        """
        there = versions(self._directory)
        first = there[-1] if there else 0
        for version in reversed(there):
            first = version
            # The one before this was the newest until this one came.
            if _load(manifest_path(self._directory, version)).created_ns < moment_ns:
                break
        manifest = Manifest()
        for version in range(full_before(first), first and there[-1] + 1):
            path = manifest_path(self._directory, version)
            try:
                manifest = follow(manifest, _load(path), path)
            except FileNotFoundError as error:
                raise LakeDamaged(path, "is missing") from error
            if version >= first:
                yield manifest

    def _read(self, version: int, there: list[int]) -> Manifest:
        last = self._last
        if last.version == version:
            return last
        chain: list[tuple[Path, Told]] = []
        kept = frozenset(there)
        for number in range(version, 0, -1):
            if number == last.version and chain and chain[-1][1].before == last.digest:
                break
            path = manifest_path(self._directory, number)
            if number not in kept:
                raise LakeDamaged(path, "is missing")
            told = _load(path)
            if told.version != number:
                raise LakeDamaged(path, f"is the manifest of version {told.version}")
            chain.append((path, told))
            if told.full:
                break
        manifest = last if chain and not chain[-1][1].full else Manifest()
        for path, told in reversed(chain):
            manifest = follow(manifest, told, path)
        return manifest


def _load(path: Path) -> Told:
    with path.open("rb") as file:
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise LakeDamaged(path, f"has over {SIZE_MAX} bytes")
    return decode(data, path)
