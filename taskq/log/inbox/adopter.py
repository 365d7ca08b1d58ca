"""Adopting uploads: published files of the inbox become jobs of the log, slice by slice.

One of the processes that share a directory does it at a time, in steps of about a millisecond on
its storage thread, between batches; each slice goes through an ordinary batch. The log alone holds
the progress of an upload, so that any other process goes on where one was killed. Before the first
job of an upload is taken, all of its parts are read and compared with their manifest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeVar

from taskq.core import errors, model
from taskq.log.commit import answers, chores, room
from taskq.log.format.notes import UploadProgress
from taskq.log.inbox import directory, parts
from taskq.log.machine.threads import Reporter
from taskq.log.requests import AdoptOrder, Op

if TYPE_CHECKING:
    from taskq.log.commit import committer

T = TypeVar("T")

_log: Final = Reporter("taskq")
#: Seconds between two looks for uploads, in a log that had some, and in another; a publisher wakes
#: the process besides.
_LOOK_NS: Final = model.SECOND_NS
_IDLE_LOOK_NS: Final = 10 * model.SECOND_NS
#: Seconds to wait after trouble: with a full disk, and with anything else.
_FULL_NS: Final = model.SECOND_NS
_TROUBLE_NS: Final = 30 * model.SECOND_NS
#: Files of writers that died are looked for this often.
_SWEEP_NS: Final = 3_600 * model.SECOND_NS


class Adopter(chores.Chore):
    """Adopt uploads from the inbox, for one process."""

    def __init__(self, committer: committer.Committer) -> None:
        journal = committer.journal
        self._inbox = directory.Inbox(journal.disk, journal.clock, journal.path)
        super().__init__(journal, f"{self._inbox.path}/adopt.lock")
        self._committer = committer
        self._orders: list[tuple[AdoptOrder, int]] = []
        self._jobs = 0
        self._refused: list[errors.UploadDamaged] = []
        #: token of the upload whose parts were read last
        self._checked = ""
        self._sweep_at_ns = 0
        self._look_at_ns = journal.clock.steady_ns() + _LOOK_NS
        self._signal: int | None = None
        self._complained: set[str] = set()

    def order(self, order: AdoptOrder) -> None:
        """Adopt all there is, and resolve ``order.future`` with the number of jobs made here."""
        self._orders.append((order, self._jobs))

    def close(self) -> None:
        self._stop(0)
        self._answer(errors.LogClosed(f"{self._journal.path}: the log was closed"))

    # -- as a chore -------------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        return self._journal.config.upkeep

    def _is_asked(self) -> bool:
        return bool(self._orders)

    def _next_steps(self) -> chores.Steps | None:
        return self._work() if self._orders or self._wants_to_look() else None

    def _finished(self) -> None:
        self._complained.clear()
        self._stop(_LOOK_NS if self._signal is not None else _IDLE_LOOK_NS)

    def _wants_to_look(self) -> bool:
        if not self._is_ours():
            return False
        now_ns = self._journal.clock.steady_ns()
        signal = self._inbox.signal()
        if signal != self._signal:
            self._signal = signal
            # A process that only enqueues leaves it to the workers, if there are any; but not for
            # ever, though one publication may follow the other.
            is_worker = self._committer.facets.agenda is not None
            self._look_at_ns = min(self._look_at_ns, now_ns + (0 if is_worker else _LOOK_NS))
        if now_ns < self._look_at_ns:
            return False
        self._look_at_ns = now_ns + (_LOOK_NS if signal is not None else _IDLE_LOOK_NS)
        return signal is not None

    def _trouble(self, error: Exception) -> None:
        self._stop(_FULL_NS if isinstance(error, (errors.AppendFailed, OSError)) else _TROUBLE_NS)
        what = type(error).__name__
        if what not in self._complained:
            self._complained.add(what)
            is_known = isinstance(error, (errors.TaskqError, OSError))
            _log.warning(
                "%s: uploads wait a while: %s", self._inbox.path, error,
                exc_info=None if is_known else error,
            )  # fmt: skip
        if isinstance(error, OSError):
            where = f"{error.filename or self._inbox.path}: {error.strerror or error}"
            error = errors.LogError(f"{where}; what was adopted stands, and the rest waits")
        self._answer(answers.failure(error))

    def _answer(self, error: errors.TaskqError | None) -> None:
        orders, self._orders = self._orders, []
        for (port, future), before in orders:
            answer = self._jobs - before if error is None else error
            self._committer.answers.now.append((port, future, answer))

    # -- the work ---------------------------------------------------------------------------------

    def _work(self) -> chores.Steps:
        self._refused.clear()
        while self._inbox.count_waiting():
            if self._lock < 0 and not (yield from self._wait_for_turn()):
                break
            waiting = yield from self._holding(self._inbox.published)
            self._committer.facets.uploads.keep_only(each.id for each in waiting.uploads)
            for name, problem in waiting.damaged.items():
                yield from self._refuse(name, None, errors.UploadDamaged(problem))
            for upload in waiting.uploads:
                yield from self._adopt(upload)
            yield None
        self._answer(self._refused[0] if self._refused else None)
        now_ns = self._journal.clock.steady_ns()
        if now_ns < self._sweep_at_ns:
            return
        # Also where nothing waits: the last who wrote may have died.
        if self._lock >= 0 or (self._signal is not None and (yield from self._wait_for_turn())):
            self._sweep_at_ns = now_ns + _SWEEP_NS
            yield from self._holding(self._inbox.sweep)

    def _wait_for_turn(self) -> Generator[None, None, bool]:
        while not self._take_turn():
            if not self._orders or not self._inbox.count_waiting():
                return False
            self._pause()
            yield None
        return True

    def _holding(self, action: Callable[[], T]) -> Generator[None, None, T]:
        """Do what must not meet a publication; who is stopped in one stops no worker."""
        while not self._inbox.try_hold():
            self._pause()
            yield None
        try:
            return action()
        finally:
            self._inbox.let_go()

    def _adopt(self, upload: directory.Upload) -> chores.Steps:
        try:
            yield from self._adopt_whole(upload)
        except errors.UploadDamaged as error:
            yield from self._refuse(upload.name, upload, error)

    def _adopt_whole(self, upload: directory.Upload) -> chores.Steps:
        inbox, seen = self._inbox, self._committer.facets.uploads
        if not inbox.is_done(upload):
            self._journal.refresh()
            seen.look_from(upload.from_lsn)
            for _ in seen.steps():
                yield None
            if self._progress(upload).done < upload.jobs:
                yield from self._check(upload)
                yield from self._adopt_slices(upload)
            self._make_durable(upload)
        lsn, latest = seen.progress(upload.id) or (0, _nothing(upload))
        ended = self._ended(upload, lsn, latest)
        # On a full disk, too: it gives back the space of the files.
        finish = functools.partial(inbox.finish, upload, ended)
        yield from self._holding(lambda: room.with_reserve(inbox.disk, self._journal.path, finish))

    def _check(self, upload: directory.Upload) -> chores.Steps:
        """Read all parts; not once more after each pause that a full disk makes."""
        if self._checked == upload.token:
            return
        for part in upload.parts:
            file = parts.PartFile(self._inbox.disk, f"{self._inbox.path}/{part.name}")
            for _ in file.check_steps(part):
                yield None
        self._checked = upload.token

    def _adopt_slices(self, upload: directory.Upload) -> chores.Steps:
        reader = parts.UploadReader(self._inbox.disk, self._inbox.path, upload)
        done = self._progress(upload).done
        while done < upload.jobs:
            piece = reader.slice(done, self._age_ns(upload))
            if piece.is_keyed:
                for _ in self._committer.facets.dedup_steps():
                    yield None
            before = self._progress(upload)
            inner = self._port.make(Op.ADOPT, piece)
            yield from inner.wait()
            adopted: UploadProgress = inner.value
            done = adopted.done
            if before.done == piece.start < done:
                self._jobs += done - piece.start - (adopted.duplicates - before.duplicates)

    def _progress(self, upload: directory.Upload) -> UploadProgress:
        latest = self._committer.facets.uploads.progress(upload.id)
        return _nothing(upload) if latest is None else latest[1]

    def _make_durable(self, upload: directory.Upload) -> None:
        latest = self._committer.facets.uploads.progress(upload.id)
        if latest is None or latest[0] < self._journal.durable_lsn:
            return
        self._committer.sync()
        if latest[0] >= self._journal.durable_lsn:
            raise errors.LogError(
                f"{self._journal.path}: what was adopted could not be made durable"
            )

    def _age_ns(self, upload: directory.Upload) -> int:
        """Return how long ago it was published; a step of the wall clock since does not count.

        Unless the machine was started anew, too: then the wall clock is all there is.
        """
        clock = self._journal.clock
        if upload.boot == self._journal.boot:
            return max(clock.steady_ns() - upload.steady_ns, 0)
        return max(clock.wall_ns() - upload.published_ns, 0)

    def _ended(
        self, upload: directory.Upload, lsn: int, latest: UploadProgress, problem: str = ""
    ) -> directory.Ended:
        return directory.Ended(
            upload.name, upload.token, upload.jobs, latest.done - latest.duplicates,
            latest.duplicates, latest.first_lsn, lsn + 1 if lsn else 0,
            self._journal.clock.wall_ns(), problem,
        )  # fmt: skip

    def _refuse(
        self, name: str, upload: directory.Upload | None, error: errors.UploadDamaged
    ) -> chores.Steps:
        if upload is None:
            ended = directory.Ended(
                name, "", 0, 0, 0, 0, 0, self._journal.clock.wall_ns(), str(error)
            )
            parts: tuple[directory.Part, ...] = ()
        else:
            known = self._committer.facets.uploads.progress(upload.id)
            lsn, latest = known or (0, _nothing(upload))
            problem = f"{error}; {latest.done} of its {upload.jobs} jobs were adopted"
            ended = self._ended(upload, lsn, latest, problem)
            parts = upload.parts
        yield from self._holding(lambda: self._inbox.refuse(name, parts, ended))
        _log.error(
            "%s: the upload %s was refused and set aside in %s/refused: %s",
            self._journal.path, name, self._inbox.path, ended.problem,
        )  # fmt: skip
        self._refused.append(
            errors.UploadDamaged(f"the upload {name} was refused: {ended.problem}")
        )


def _nothing(upload: directory.Upload) -> UploadProgress:
    return UploadProgress(upload.id, 0, upload.jobs, 0, 0)
