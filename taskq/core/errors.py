"""Every error that taskq raises; ``taskq.errors`` draws their tree."""

from __future__ import annotations

import errno
import re
from typing import Any, Final, Literal

_DRIVE: Final = r"[A-Za-z]:\\|\\\\"
_PLAIN: Final = r"[\w\\/:.@~+=-]+"


def command(directory: str, *words: str) -> str:
    """Return a command line for the log in a directory: ``taskq why abcd-7 -d '/my data'``.

    Args:
        directory: absolute path of the log, since users run the command in any directory.
        words: command and its arguments.
    """
    return as_typed("taskq", *words, "-d", directory)


def as_typed(*words: str) -> str:
    """Return words as one line for the system's shell; Windows knows only double quotes."""
    if not any(re.match(_DRIVE, word) for word in words):
        import shlex  # noqa: PLC0415 - only errors need it

        return shlex.join(words)
    return " ".join(word if re.fullmatch(_PLAIN, word) else f'"{word}"' for word in words)


def worker_command(directory: str) -> str:
    """Return a worker's command line with a placeholder for the app."""
    return command(directory, "worker", "MODULE:APP")


_READ_ONLY: Final = "mount the file system for writing; read commands work without"
_NOT_ALLOWED: Final = (
    "use the user that the directory belongs to, with the right to read and write (chmod u+rwX), "
    "or another directory"
)
_NO_ROOM: Final = "Free some space or inodes (df -h, df -i) or raise the quota, then try again"
_SHORTER: Final = "use a directory with a shorter path"
_NO_DIRECTORY: Final = (
    "a file stands where a directory should be: move it away, or use another path"
)
#: Advice by error number of the operating system.
_REMEDIES: Final = {
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EFBIG: "raise the limit of file sizes of this process (ulimit -f, RLIMIT_FSIZE)",
    errno.EBADF: "find the code of this process that closes its files, then start it again",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n), or find what leaks",
    errno.ENFILE: "the whole machine has too many files open: end what holds them",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.ENAMETOOLONG: _SHORTER,
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.EISDIR: "a directory stands where a file should be: move it away",
    errno.ELOOP: "remove the symbolic link, or use the directory that it leads to",
    errno.EIO: "check the disk and the system's messages (dmesg), and whether it is still there",
}
#: Advice by Windows error code, for codes that Python maps to a broad errno.
_REMEDIES_WINDOWS: Final = {
    3: _NO_DIRECTORY,  # ERROR_PATH_NOT_FOUND
    123: f'{_SHORTER}, and names without any of < > : " | ? *',  # ERROR_INVALID_NAME
    183: _NO_DIRECTORY,  # ERROR_ALREADY_EXISTS
    206: _SHORTER,  # ERROR_FILENAME_EXCED_RANGE
    267: _NO_DIRECTORY,  # ERROR_DIRECTORY
}


#: Longest name of a file in any directory. For a longer name, Windows reports a missing file (2, 3)
#: or an invalid name (123).
_NAME_MAX, _TOO_LONG = 255, (2, 3, 123, 206)


def remedy(error: OSError, path: str = "") -> str:
    """Return advice for an error of the operating system, as a sentence without its full stop."""
    path = str(error.filename or path)
    longest = max(map(len, re.split(r"[/\\]", path)))
    code = getattr(error, "winerror", None) or 0
    general = _REMEDIES.get(error.errno or 0, "check the disk and the path, then try again")
    advice = _REMEDIES_WINDOWS.get(code, general)
    if code in _TOO_LONG and longest > _NAME_MAX:
        advice = _SHORTER
    if advice == _SHORTER:
        advice += f": it has {len(path)} characters, its longest name {longest} of {_NAME_MAX}"
    return advice[0].upper() + advice[1:]


def refusal(path: str, error: OSError) -> LogError:
    place = str(error.filename or path)
    if re.match(_DRIVE, place):  # paths within a log are made with "/" everywhere
        place = place.replace("/", "\\")
    return LogError(f"{place}: {error.strerror or error}. {remedy(error, path)}")


def no_loop(what: str = "what is awaited here") -> UsageError:
    """Make the error of a coroutine that runs outside asyncio, under trio for example.

    Args:
        what: needs the loop; the beginning of a sentence.
    """
    return UsageError(
        f"{what} needs an event loop of asyncio, and none runs here: under trio use "
        f"with app.worker_thread() for jobs, and for calls the twins that block, in a thread: "
        f"trio.to_thread.run_sync(task.enqueue_sync, ...)"
    )


class TaskqError(Exception):
    """Root of all errors that taskq itself raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[TaskqError], args: tuple[object, ...], data: dict[str, object]
) -> TaskqError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


class UsageError(TaskqError, ValueError):
    """An argument, option or id is wrong; the message names it and the accepted form."""


class InvalidCall(UsageError):
    """Arguments that do not fit a task's signature; nothing was written.

    Attributes:
        task: name of the task.
    """

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(f"{task}: {problem}")
        self.task = task


class PayloadTooLarge(UsageError):
    """A payload, result, header or transaction is over its limit.

    Attributes:
        size: bytes of the given value.
        limit: bytes allowed.
    """

    def __init__(self, what: str, size: int, limit: int, remedy: str = "") -> None:
        hint = remedy or "store the data in a file and pass its path"
        super().__init__(f"{what} has {size} bytes, the limit is {limit}: {hint}")
        self.size = size
        self.limit = limit


class InvalidStep(UsageError):
    """A step or wait is invalid as written, so no attempt can do it: the job is dead at once.

    Examples: a value without a form in JSON, a name that is another kind of step already, a step
    within a step, ``asyncio.timeout()`` around a wait.
    """


class CompressionUnavailable(UsageError):
    """Compressing or reading a body needs a package that is not installed."""


class UnknownTask(UsageError):
    """A task name that is not registered here."""


class JobNotFound(TaskqError):
    """The log has no job with this id. Base of the errors about job ids."""


class InvalidJobId(UsageError, JobNotFound):
    """The text is no job id."""


class WrongLog(UsageError, JobNotFound):
    """The job id belongs to another task log."""


class LogError(TaskqError):
    """The task log's directory cannot be used as asked.

    Attributes:
        outcome: "refused": the call wrote nothing; "unknown": its records may be in the log, and
            only the next open can decide that.
    """

    outcome: Literal["refused", "unknown"] = "refused"


class LogLocked(LogError):
    """The writer lock was not free in time.

    Attributes:
        path: the data directory.
        holder_pid: process id of the holder, 0 if unknown.
        waited_seconds: how long this process waited.
    """

    def __init__(
        self, path: str, holder_pid: int, holder_state: str, waited_seconds: float
    ) -> None:
        holder = f"process {holder_pid} ({holder_state})" if holder_pid else "another process"
        super().__init__(
            f"{path}: the writer lock is held by {holder}; gave up after {waited_seconds:.0f} s. "
            f"Continue or stop that process, then try again"
        )
        self.path = path
        self.holder_pid = holder_pid
        self.waited_seconds = waited_seconds


class LogFailed(LogError):
    """An fsync failed earlier, so no process may write until the log is opened again."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(
            f"{path}: writes are refused because {detail}. Check the disk, close every process "
            f"that uses this directory and open it again: taskq then saves what is still readable"
        )
        self.path = path


class LogGone(LogFailed):
    """The log's path no longer leads to the files that are open here; nothing was written.

    The files were removed, moved or replaced, or their disk was detached.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        message = (
            f"{path}: {what} while it was open here, so nothing is written any more. Put back what "
            f"was removed or moved, then close every process that uses this directory and open it "
            f"again"
        )
        self.args: tuple[str] = (message,)


class OutcomeUnknown(LogError):
    """The disk failed during this call: its records may be kept or lost.

    The fsync failed that should have made the answer durable, or a write failed and could not be
    undone. The next open of the directory keeps the whole failed batch or nothing of it.

    This is also the cause of an error that a signal handler raised in a blocking call. In that case
    the log stays open and already has the outcome.
    """

    outcome: Literal["refused", "unknown"] = "unknown"

    def __init__(
        self,
        path: str,
        error: OSError,
        what: str = "fsync",
        advice: str = "Check the disk, then open the log again and look the job up",
    ) -> None:
        super().__init__(
            f"{path}: {what} failed ({error.strerror or error}), so the outcome of this call is "
            f"unknown. {advice}"
        )
        self.path = path


class AppendFailed(LogError):
    """The disk refused an append; nothing of the batch is visible, and the log stays open.

    Attributes:
        errno: the operating system's code, for example ``errno.ENOSPC``.
    """

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(
            f"{path}: could not write ({error.strerror or error}); nothing was written. "
            f"{remedy(error, path)}"
        )
        self.path = path
        self.errno: int | None = error.errno


class DiskFull(AppendFailed):
    """Too little room on the disk for new jobs; nothing was enqueued, and the log stays open.

    Settling and cancelling still work: they use the room that enqueues must leave free.

    Attributes:
        free_bytes: free on the disk at the last look.
        limit_bytes: bytes that enqueues must leave free: ``min_free``, and the reserve while it is
            missing.
    """

    def __init__(self, path: str, error: OSError, free_bytes: int, limit_bytes: int) -> None:
        super().__init__(path, error)
        message = (
            f"{path}: no room for new jobs ({error.strerror or error}): {free_bytes} bytes are "
            f"free, new jobs must leave {limit_bytes}; nothing was written. Free some space, "
            f"raise the quota or lower min_free, then try again"
        )
        self.args: tuple[str] = (message,)
        self.free_bytes = free_bytes
        self.limit_bytes = limit_bytes


class FormatError(LogError):
    """Bytes of a version, type or feature that this taskq does not know."""


class LogDamaged(LogError):
    """Bytes that were durable cannot be read back; the message names their place."""


class MomentGone(LogError):
    """The state at that moment is lost, because compaction removed a part of it.

    Attributes:
        oldest_lsn: the oldest moment that can be restored, as an lsn.
        oldest: the same as a time, in ISO 8601.
    """

    def __init__(self, path: str, oldest_lsn: int, oldest: str) -> None:
        super().__init__(
            f"{path}: compaction removed records of that moment: the oldest "
            f"state that can be read is of {oldest} (lsn {oldest_lsn})"
        )
        self.oldest_lsn = oldest_lsn
        self.oldest = oldest


class ReaderBusy(LogError):
    """Another process reads the log under this reader name: each would get only some records.

    Attributes:
        reader: the name.
        holder_pid: process id of the reader, 0 if unknown.
    """

    def __init__(self, path: str, reader: str, holder_pid: int) -> None:
        holder = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(
            f"{path}: {holder} reads under the name {reader!r}: stop it first, "
            f"or read under another name"
        )
        self.reader = reader
        self.holder_pid = holder_pid


class ReaderFellBehind(LogError):
    """Compaction removed records that a reader has not read; none was skipped silently.

    Attributes:
        reader: its name, "" for a stream without one.
        lsn: of the next record to read.
        oldest_lsn: of the oldest record in the log.
    """

    def __init__(self, path: str, reader: str, lsn: int, oldest_lsn: int) -> None:
        stream = f"reader {reader!r}" if reader else "this stream"
        remedy = (
            f"move it there with seek({reader!r}, lsn={oldest_lsn})" if reader else "start there"
        )
        super().__init__(
            f"{path}: {stream} was to go on at lsn {lsn}, but compaction removed everything before "
            f"lsn {oldest_lsn}: {remedy}, and get what is missing elsewhere"
        )
        self.reader = reader
        self.lsn = lsn
        self.oldest_lsn = oldest_lsn


class ReaderMismatch(LogError):
    """The log was cut or replaced: it holds other records at the reader's position.

    Attributes:
        reader: its name, "" for a stream without one.
        lsn: of the next record to read.
    """

    def __init__(self, path: str, reader: str, lsn: int, problem: str) -> None:
        stream = f"reader {reader!r}" if reader else "this stream"
        super().__init__(
            f"{path}: {stream} had come to lsn {lsn}, but {problem}: the log was cut or replaced "
            f"since. Check how the reader handled the last records, then move it with seek()"
        )
        self.reader = reader
        self.lsn = lsn


class LogClosed(LogError):
    """The log was closed; open it again to use it."""


class StaleDelivery(TaskqError):
    """The claim of this delivery is over: the job was taken back, settled or cancelled."""


class DuplicateKey(TaskqError):
    """Another job holds the key of an enqueue with ``raise``; nothing was written.

    Attributes:
        key: the dedup key.
        job_id: the job that holds it; "" if the key comes twice in one transaction.
    """

    def __init__(self, queue: str, key: bytes, job_id: str) -> None:
        shown = repr(key.decode("utf-8", "backslashreplace"))[:60]
        if job_id:
            problem = f"is held by job {job_id}: wait for that one, or choose another on_conflict"
        else:
            problem = "comes twice in this transaction: leave one of the two out"
        super().__init__(f"key {shown} of queue {queue!r} {problem}")
        self.key = key
        self.job_id = job_id


class SourceMoved(TaskqError):
    """The source is not at the position ``after`` of this ``ingest``; nothing was written.

    Attributes:
        source: its name.
        position: its position; None: the log does not know the source.
        after: the position that the caller expected.
    """

    def __init__(self, source: str, position: object, after: object) -> None:
        where = "is unknown here" if position is None else f"stands at {position!r:.200}"
        expected = "unknown" if after is None else f"at {after!r:.200}"
        super().__init__(
            f"source {source!r} {where}, and not {expected}: somebody else ingests it, too, or an "
            f"earlier call was done. Nothing was written: go on from position({source!r})"
        )
        self.source = source
        self.position = position
        self.after = after


class NotDead(TaskqError):
    """The job is no dead letter, so it cannot be requeued or purged; nothing was done.

    Attributes:
        job_id: the job's id.
        state: its state in a word; empty if it was requeued or purged a moment ago.
    """

    def __init__(self, job_id: str, state: str, directory: str) -> None:
        known = f"it is {state}" if state else "it was requeued or purged a moment ago"
        see = command(directory, "show", job_id)
        super().__init__(f"job {job_id} is no dead letter: {known}; see: {see}")
        self.job_id = job_id
        self.state = state


class NotWaiting(TaskqError):
    """The job runs or has ended, so its waiting cannot be edited; nothing was done.

    Attributes:
        job_id: the job's id.
        state: its state in a word.
    """

    def __init__(self, job_id: str, state: str, directory: str) -> None:
        what = "it runs already" if state == "running" else f"it is {state}"
        see = command(directory, "show", job_id)
        super().__init__(f"job {job_id} does not wait: {what}; see: {see}")
        self.job_id = job_id
        self.state = state


class JobSettled(TaskqError):
    """The job never runs again, so no step would take a signal; nothing was done.

    Attributes:
        job_id: the job's id.
        state: its final state in a word.
    """

    def __init__(self, job_id: str, state: str, directory: str) -> None:
        see = command(directory, "show", job_id)
        ended = f"it is {state}" if state else "it has ended"
        super().__init__(f"job {job_id} takes no signals any more: {ended}; see: {see}")
        self.job_id = job_id
        self.state = state


class KeyHeld(TaskqError):
    """A job may not hold its dedup key, since another job holds it; nothing was done.

    Attributes:
        job_id: id of the dead letter to requeue, or of the job to move.
        holder_id: id of the job that holds the key.
    """

    def __init__(self, job_id: str, holder_id: str, what: str = "requeued") -> None:
        super().__init__(
            f"job {job_id} cannot be {what}: job {holder_id} holds its dedup key now. "
            f"Wait until that one is settled, or cancel it; then try again"
        )
        self.job_id = job_id
        self.holder_id = holder_id


class JobNotYetEnqueued(TaskqError):
    """A PendingJob has no id until the transaction that it belongs to is on disk."""


class JobError(TaskqError):
    """Raised by ``result()`` when there is no value.

    Attributes:
        job_id: the job's id.
    """

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(f"job {job_id} {message}")
        self.job_id = job_id


class JobFailed(JobError):
    """The job is dead.

    Attributes:
        reason: first line ``Type: message``, then the last lines of the traceback.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(job_id, f"failed: {reason}")
        self.reason = reason


class JobCancelled(JobError):
    """The job was cancelled."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "was cancelled")


class JobExpired(JobError):
    """The job's ``expires`` passed before it ran."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "expired before a worker could run it")


class ResultGone(JobError):
    """The job succeeded, but its result is not kept."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "succeeded, but its result was not kept (store_result=False)")


class ResultTimeout(JobError, TimeoutError):
    """The job was not settled in time; it continues, so call again.

    Attributes:
        seconds: duration of the wait.
        why: the reason why it does not run, or that it runs; "" if finding the reason would have
            taken more than a tenth of the wait.
    """

    def __init__(self, job_id: str, seconds: float, state: str, why: str, directory: str) -> None:
        reason = f": {why}" if why else f"; for the reason: {command(directory, 'why', job_id)}"
        super().__init__(job_id, f"is still {state} after {seconds:g} s{reason}")
        self.seconds = seconds
        self.why = why


# Programs import them from taskq.errors, so tracebacks and pickles name that module.
for _kind in tuple(globals().values()):
    if isinstance(_kind, type) and issubclass(_kind, TaskqError):
        _kind.__module__ = "taskq.errors"
