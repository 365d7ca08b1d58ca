"""Write snapshots in small steps between batches, one process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, Final

from taskq.core.errors import LogError
from taskq.log.commit.committer import Committer
from taskq.log.journal.recovery import is_marked_failed
from taskq.log.machine import ports, threads
from taskq.log.state import snapshot

_log: Final = threads.Reporter("taskq")
#: Bytes of new log before a snapshot pays off, and before one at close does.
LOG_BYTES_MIN: Final = 8 * 1024 * 1024
CLOSE_BYTES_MIN: Final = 4 * 1024 * 1024
#: A snapshot is written after new log of at least half of its own size.
STATE_PARTS: Final = 2
#: Snapshots kept per facet: the newest may turn out damaged.
KEPT: Final = 2
#: Bytes of log between a failed snapshot and the next try.
_PATIENCE_BYTES: Final = 1024 * 1024
#: Bytes after which a large file is synced before its end.
_SYNC_BYTES: Final = 4 * 1024 * 1024
_LOCK_FILE: Final = "lock"
_TEMPORARY: Final = ".tmp"
_FORMS: Final[tuple[snapshot.Form[Any], ...]] = (snapshot.AGENDA, snapshot.DEDUP)


class Snapshots:
    """The snapshots that one process writes.

    ``due`` costs nothing after each batch. All steps run between batches, and may end at any step.

    One step copies the facet, without the lock, while it does not change; a million waiting jobs
    take some 20 ms. All other steps take a millisecond, without waits for the disk. The file gets
    its name last: after the file and the log before its position are on disk, if no frames were
    moved meanwhile. So a file with its final name is valid.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._journal = committer.journal
        self._directory = f"{self._journal.path}/{snapshot.DIRECTORY}"
        self._log_bytes_min, self._state_parts = LOG_BYTES_MIN, STATE_PARTS
        #: position of the log up to which ``due`` returns the same
        self._segment = -1
        self._offset = 0
        self._is_due = False

    def due(self) -> bool:
        """Return whether the log grew enough since the newest snapshot for another."""
        journal = self._journal
        if journal.segment != self._segment or journal.offset >= self._offset:
            self._is_due, left = False, _PATIENCE_BYTES
            with contextlib.suppress(OSError, LogError):  # a later call tries again
                forms, left = self._look()
                self._is_due = bool(forms)
            self._look_after(left)
        return self._is_due

    def _look(self) -> tuple[list[snapshot.Form[Any]], int]:
        """Return (due snapshots, bytes of log until another check pays off)."""
        self._journal.refresh()
        forms: list[snapshot.Form[Any]] = []
        left: list[int] = []
        for form in self._built():
            since, size = self._since(form)
            limit = max(self._log_bytes_min, size // self._state_parts)
            if since >= limit:
                forms.append(form)
            else:
                left.append(limit - since)
        return forms, _PATIENCE_BYTES if forms else min(left, default=_PATIENCE_BYTES)

    def _look_after(self, size: int) -> None:
        self._segment, self._offset = self._journal.segment, self._journal.offset + size

    def _built(self) -> list[snapshot.Form[Any]]:
        facets = self._committer.facets
        return [form for form in _FORMS if facets.cursor_of(form.kind.name) is not None]

    def _since(self, form: snapshot.Form[Any]) -> tuple[int, int]:
        """Return (bytes of log after the newest snapshot that fits, the snapshot's size)."""
        newest = self._newest(form)
        if newest is None:
            return self._log_bytes(0), 0
        return self._log_bytes(newest.segment) - newest.offset, newest.size

    def _newest(self, form: snapshot.Form[Any]) -> snapshot.Header | None:
        for name in snapshot.snapshot_names(self._journal.disk, self._journal.path, form.kind.name):
            with contextlib.suppress(snapshot.Unusable, OSError):
                return self._fitting(form, name)
        return None

    def _fitting(self, form: snapshot.Form[Any], name: str) -> snapshot.Header:
        journal = self._journal
        with ports.opened(journal.disk, f"{self._directory}/{name}", write=False) as descriptor:
            header = snapshot.read_header(journal.disk, descriptor, form.kind, journal.identity)
        snapshot.check_fit(journal, header)
        return header

    def _log_bytes(self, segment: int) -> int:
        journal, files = self._journal, self._journal.files
        total = journal.offset
        for lsn in files.lsns:
            if segment <= lsn < journal.segment:
                with contextlib.suppress(LogError):  # it was removed just now
                    total += files.sealed_size(lsn)
        return total

    def steps(self) -> Generator[None, None, None]:
        """Write due snapshots. Raises nothing: errors are logged, and retried later."""
        yield from self._write_all(lambda: self._look()[0])

    def close_steps(self) -> Generator[None, None, None]:
        """Write snapshots that make the next opening much faster, as a process's last work."""
        yield from self._write_all(self._due_at_close)

    def write_steps(self) -> Generator[None, None, None]:
        """Write a snapshot of every built facet, even after little new log."""
        yield from self._write_all(self._built)

    def _due_at_close(self) -> list[snapshot.Form[Any]]:
        return [form for form in self._built() if self._since(form)[0] >= CLOSE_BYTES_MIN]

    def _write_all(
        self, choose: Callable[[], list[snapshot.Form[Any]]]
    ) -> Generator[None, None, None]:
        self._is_due = False
        self._look_after(_PATIENCE_BYTES)
        path = self._journal.path
        try:
            forms = choose()
            if forms:
                yield from self._take_turns(forms)
        except (OSError, OverflowError, LogError) as error:
            _log.warning("%s: no snapshot was written: %s", path, error)
        except Exception:  # noqa: BLE001 - a bug here must not close the log
            _log.exception("%s: no snapshot was written", path)

    def _take_turns(self, forms: list[snapshot.Form[Any]]) -> Generator[None, None, None]:
        disk = self._journal.disk
        if not disk.names(self._directory):
            disk.make_directory(self._directory)
            disk.sync_directory(self._journal.path)
        with ports.opened(disk, f"{self._directory}/{_LOCK_FILE}", create=True) as lock:
            if disk.try_lock(lock):
                for form in forms:
                    yield from self._write(form)

    def _write(self, form: snapshot.Form[Any]) -> Generator[None, None, None]:
        """Write one snapshot in steps, from the copy to the removal of older ones.

        Raises:
            OSError: the disk refused; the file was removed.
        """
        captured = self._capture(form)
        if captured is None:
            return
        disk, generation = self._journal.disk, self._journal.generation
        name = snapshot.snapshot_name(captured.header.next_lsn, form.kind.name)
        temporary = f"{self._directory}/{name}{_TEMPORARY}"
        yield
        try:
            yield from self._fill(temporary, captured)
            if not self._is_true(captured.header, generation):
                disk.remove(temporary)
                return
            disk.rename(temporary, f"{self._directory}/{name}")
        except OSError:
            with contextlib.suppress(OSError):
                disk.remove(temporary)
            raise
        yield
        disk.sync_directory(self._directory)
        # The size of this snapshot decides when the next is due.
        self._segment = -1
        yield from self._tidy(form)

    def _capture(self, form: snapshot.Form[Any]) -> snapshot.Captured | None:
        """Copy the facet; None if the copy is useless, or the disk has no room for it."""
        journal, facets = self._journal, self._committer.facets
        cursor = facets.cursor_of(form.kind.name)
        if cursor is None or facets.generation != journal.generation:
            return None
        newest = self._newest(form)
        if newest is not None and newest.next_lsn >= cursor.next_lsn:
            return None
        facet = facets.agenda if form is snapshot.AGENDA else facets.dedup
        captured = snapshot.capture(journal, form, facet, cursor, journal.clock.wall_ns())
        if captured is None:
            return None
        room = self._committer.room
        room.look()
        if room.pressed or room.headroom < captured.header.size:
            return None
        return captured

    def _fill(self, path: str, captured: snapshot.Captured) -> Generator[None, None, None]:
        disk = self._journal.disk
        with ports.opened(disk, path, create=True) as descriptor:
            disk.truncate(descriptor, 0)
            offset = synced = 0
            for part in snapshot.file_parts(captured.header, captured.frozen):
                ports.write_all(disk, descriptor, part, offset)
                offset += len(part)
                yield
                if offset - synced >= _SYNC_BYTES:
                    disk.sync(descriptor)
                    synced = offset
                    yield
            disk.sync(descriptor)
        self._journal.meters.upkeep_bytes += offset
        yield

    def _is_true(self, header: snapshot.Header, generation: int) -> bool:
        """Return whether the log before the position is on disk, and unchanged."""
        journal = self._journal
        if journal.durable_lsn < header.next_lsn:
            self._committer.sync()
        if journal.durable_lsn < header.next_lsn:
            return False
        # In this order: a recovery announces itself before it moves frames, and again afterwards.
        hint = journal.writer.peek()
        return (
            hint is not None
            and not hint.failed
            and (hint.home, hint.generation) == (journal.home, generation)
            and not is_marked_failed(journal.disk, journal.path)
        )

    def _tidy(self, form: snapshot.Form[Any]) -> Generator[None, None, None]:
        """Remove older and useless snapshots of the facet, and files left by a crash."""
        disk = self._journal.disk
        kept = 0
        for name in snapshot.snapshot_names(disk, self._journal.path, form.kind.name):
            try:
                self._fitting(form, name)
                kept += 1
                if kept <= KEPT:
                    continue
            except snapshot.Newer:
                continue
            except (snapshot.Unusable, OSError):
                pass  # it is useless
            disk.remove(f"{self._directory}/{name}")
            yield
        for name in disk.names(self._directory):
            if name.endswith(_TEMPORARY):
                disk.remove(f"{self._directory}/{name}")
                yield
