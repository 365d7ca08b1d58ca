"""An app's connection to one directory: opens its store at first use, and packs bodies."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from taskq.calls.call import Call, OptionChanges, Options, Put, spec_of, transaction_bytes
from taskq.calls.habits import check_directory
from taskq.connection import blocking, logoptions, tracing
from taskq.core import errors, model, parsing, records
from taskq.core.parsing import Tag
from taskq.log import requests
from taskq.log.config import LogConfig
from taskq.log.format.bodies import Compression, check_compression, check_size
from taskq.log.machine import forks, inside
from taskq.log.segments.bodystore import QUICK_BYTES_MAX, BodyStore

if TYPE_CHECKING:
    from concurrent.futures import Future

    from taskq.connection import handle
    from taskq.core import sources, views
    from taskq.log.store.port import LoopPort, ThreadPort
    from taskq.log.store.store import Store

_OURS: Final = frozenset({"taskq", "taskq_plugins", "taskq_workers"})


def install() -> None:
    """Make the traceback of an uncaught ``UsageError`` end at the caller's line.

    Other errors go to the previous ``sys.excepthook``.
    """
    if getattr(sys.excepthook, "__name__", "") != _show.__name__:
        sys.excepthook = functools.wraps(_show)(functools.partial(_show, sys.excepthook))


def end_at_caller(error: errors.UsageError) -> None:
    """Cut the traceback after the last line outside taskq and the standard library."""
    last: TracebackType | None = None
    trace = error.__traceback__
    while trace is not None:
        if _is_of_program(trace.tb_frame.f_globals):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
    # The context, such as an error of a library, adds no information.
    error.__suppress_context__ = True
    if error.__cause__ is not None and not _is_of_caller(error.__cause__):
        error.__cause__ = None


def caller() -> FrameType:
    """Return the program's innermost running frame; or its outermost frame.

    A ``…_sync`` call may run on a thread without frames of the program.
    """
    frame = sys._getframe(1)
    while not _is_of_program(frame.f_globals) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_of_program(names: Mapping[str, object]) -> bool:
    """Return whether code with these globals is outside taskq and the standard library."""
    package = _package(names)
    return package not in _OURS and package not in sys.stdlib_module_names


def _package(names: Mapping[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]


def _is_of_caller(cause: BaseException) -> bool:
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or _package(trace.tb_frame.f_globals) not in _OURS


def _show(
    show: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if isinstance(error, errors.UsageError):
        end_at_caller(error)
        trace = error.__traceback__
    show(kind, error, trace)


#: A job before packing: item, compression of its body, and the body's name in errors.
Loose: TypeAlias = tuple[requests.Item, "Compression | None", str]

R = TypeVar("R")

_new: Final = tuple.__new__
_PLAIN: Final = Options()


class Packer:
    """Packs and unpacks the bodies of one log."""

    def __init__(self, path: str, config: LogConfig) -> None:
        self.config: LogConfig = config
        self.bodies: BodyStore = BodyStore(path, config)

    def packing(self, chosen: Options) -> Compression | None:
        """Return the compression of payloads with these options; None for none."""
        return self.config.packing(chosen.queue, chosen.compress)

    # -- into the log -----------------------------------------------------------------------------

    def plain_item(self, call: Call[Any]) -> requests.Item | None:
        """Return the call as an item for a port, or None if its payload must be packed first."""
        chosen = call.chosen
        if self.config.packing(chosen.queue, chosen.compress) is not None:
            return None
        if len(call.body) > model.PAYLOAD_BYTES_MAX:
            return None
        return call.spec, call.body, call.extras

    def plain_items(self, calls: list[Call[R]]) -> list[requests.Item] | None:
        """Return the calls as items for a port, or None if a payload must be packed first."""
        items: list[requests.Item] = []
        for call in calls:
            item = self.plain_item(call)
            if item is None:
                return None
            items.append(item)
        return items

    def loose(self, call: Call[Any]) -> Loose:
        """Return the call in the form that ``items`` takes."""
        packing, what = self.packing(call.chosen), f"{call.name}: the payload"
        check_size(what, call.body)
        return (call.spec, call.body, call.extras), packing, what

    def items_sync(self, given: Iterable[Loose]) -> list[requests.Item]:
        """Return the jobs as items for a port; pack their payloads in this thread."""
        items: list[requests.Item] = []
        for (spec, body, extras), packing, what in given:
            stored, flags = self.bodies.pack(body, packing, what)
            items.append((spec.packed(flags), stored, extras))
        return items

    async def items(self, given: list[Loose]) -> list[requests.Item]:
        """Do as ``items_sync``, on a thread if packing takes long."""
        if sum(len(item[1]) for item, packing, _ in given if packing) <= QUICK_BYTES_MAX:
            return self.items_sync(given)
        return await blocking.off_loop(self.items_sync, given)

    async def result(
        self, body: bytes, packing: Compression | None, what: str
    ) -> tuple[bytes, int]:
        """Return a result as stored in its record, and the record's flags; raises as ``items``."""
        if packing is None or len(body) <= QUICK_BYTES_MAX:
            return self.bodies.pack(body, packing, what)
        return await blocking.off_loop(self.bodies.pack, body, packing, what)

    # -- out of the log ---------------------------------------------------------------------------

    async def unpacked(self, stored: bytes, flags: int, what: str) -> bytes:
        """Return a body in its original form; raises the errors of ``BodyStore.unpack``."""
        if not flags:
            return stored
        if self.bodies.is_quick(stored, flags):
            return self.bodies.unpack(stored, flags, what)
        return await blocking.off_loop(self.bodies.unpack, stored, flags, what)

    async def payload(self, delivery: requests.Delivery) -> bytes:
        """Return a job's payload in its original form; raises as ``BodyStore.unpack``."""
        what = f"the payload of job {delivery.job_id}"
        return await self.unpacked(delivery.stored_payload, delivery.payload_flags, what)

    async def opened_view(self, view: views.JobView) -> views.JobView:
        """Return the view with original payload and result; raises as ``BodyStore.unpack``."""
        if not (view.payload_flags or view.result_flags):
            return view
        return await blocking.off_loop(self.bodies.open_view, view)

    async def listed(self, views: list[views.JobView]) -> list[views.JobView]:
        """Return the views in the form of lists; see ``BodyStore.list_views``."""
        if not any(view.payload_flags or view.result_flags for view in views):
            return views
        return await blocking.off_loop(self.bodies.list_views, views)

    def deliveries(self, claimed: list[requests.Delivery]) -> list[requests.Delivery]:
        """Return the deliveries with payloads that unpack themselves when read."""
        if not any(delivery.payload_flags for delivery in claimed):
            return claimed
        return [
            self._readable(delivery) if delivery.payload_flags else delivery for delivery in claimed
        ]

    def _readable(self, delivery: requests.Delivery) -> requests.Delivery:
        packed = _new(PackedDelivery, delivery)
        packed.bodies = self.bodies
        return packed


class PackedDelivery(requests.Delivery):
    """A delivery whose payload is compressed."""

    bodies: BodyStore

    @property
    def payload(self) -> bytes:
        """The enqueued bytes, read from disk and decompressed at each access.

        Raises:
            LogDamaged: the payload is damaged.
            PayloadTooLarge: decompressed it would be over decompressed_bytes_max.
            CompressionUnavailable: its compression is not installed here.
        """
        return self.bodies.payload(self)


def loose_put(job: Put, packer: Packer) -> Loose:
    """Return the checked job in the form that ``Connection.pack`` takes."""
    if not isinstance(job, Put):
        raise errors.UsageError(f"put_many() takes Put(payload=...) values, got {job!r:.60}")
    check_bytes("the payload", job.payload)
    if job.compress is not None:
        check_compression(job.compress)
    packing = packer.config.packing(job.queue, job.compress)
    check_size("the payload", job.payload)
    return _put_item(job), packing, "the payload"


def _put_item(job: Put) -> requests.Item:
    spec = spec_of(job.queue, "", job.priority, job.attempts, records.Flag(0))
    is_keyed = not (job.key is job.window is job.until is None) or job.on_conflict != "first"
    if not (job.delay or job.headers or is_keyed) and job.expires is job.keep is None:
        return spec, job.payload, None
    changes: OptionChanges = {
        "delay": job.delay,
        "expires": job.expires,
        "key": job.key,
        "window": job.window,
        "until": job.until,
        "on_conflict": job.on_conflict,
        "headers": job.headers,
        "keep": job.keep,
    }
    return spec, job.payload, _PLAIN.changed(changes).fixed_extras("put")


def check_bytes(what: str, body: object) -> None:
    """Refuse a payload or result that is no bytes."""
    if not isinstance(body, bytes):
        raise errors.UsageError(f"{what} is {body!r:.60}, it must be bytes")


T = TypeVar("T")
#: Pauses before a temporarily refused request is sent again: the first, and the longest; each is
#: twice the one before. Longer pauses than the third value are logged.
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
_PAUSE_SECONDS_LOGGED: Final = 4 * _PAUSE_SECONDS
#: Free space that must exist before a step runs: enough for most results.
_STEP_BYTES: Final = 64 * 1024

#: The pytest plugin, if loaded, reports a test that opens a production log.
_PYTEST_PLUGIN: Final = "taskq.testing.plugin"

#: A directory with this file has logs below it and is no log itself; see ``taskq.shards``.
SHARDS_FILE: Final = "shards.json"

install()


class HasId(Protocol):
    """The type of a job's handle."""

    @property
    def id(self) -> str:
        """The job's id."""


#: A handle, an id, or the number at its end.
JobId: TypeAlias = str | int | HasId


class Connection:
    """Opens the store of a directory at first use, off the event loop, and again after a fork.

    The thread that opens the store also imports its code, half of taskq: programs that only declare
    tasks do not need it. Open the app before for a fast first enqueue.

    Attributes:
        path: absolute path of the directory.
        config: options of the store.
        current: the store, None before the first use; ``usable`` is False once it is closed or
            failed.
        packer: packs and unpacks the log's bodies.
        is_routed: calls of its app may go to other logs.
        refusal: why the directory cannot be opened as a log; "" if it can.
        wait_begins: at most one function, set by a worker of this process. It is called with the
            handle of a job whose result a caller awaits, and returns a function for the end of the
            wait, or None.
    """

    wait_begins: ClassVar[list[Callable[[handle.JobHandle[Any]], Callable[[], object] | None]]] = []

    def __init__(self, path: str, config: LogConfig) -> None:
        check_directory(path)
        # A later chdir, for example of a daemon, must not change the directory.
        self.path: str = logoptions.absolute_path(path)
        self.config: LogConfig = config
        self.current: Store | None = None
        self.packer: Packer = Packer(self.path, config)
        self.refusal = ""
        self.is_routed = False
        self._closed = False
        #: open ``with`` blocks, nested or in parallel
        self._blocks = 0
        self._tag = Tag("")
        self._lock = threading.RLock()
        self._opening: Future[Store] | None = None
        _CONNECTIONS.add(self)

    @property
    def tag(self) -> Tag:
        """First part of the log's job ids; known after the directory was first opened."""
        return self._tag

    def is_traced(self) -> bool:
        """Return whether enqueues are traced or measured, or may go to another log."""
        if self.current is None:
            inside.uninterrupted(tracing.look)()
        return tracing.is_traced or self.is_routed

    def check_move(self, path: str) -> None:
        """Refuse a change of the directory while the current one is open.

        Raises:
            UsageError: the current directory is open.
        """
        check_directory(path)
        if self.current is not None and self.current.usable:
            raise errors.UsageError(
                f"{self.path} is open: close the app first, or choose the directory (or enter the "
                f"sandbox) before its first use"
            )

    def move(self, path: str, config: LogConfig) -> None:
        """Use another directory, see ``check_move``."""
        with self._lock:
            self.check_move(path)
            self.path = logoptions.absolute_path(path)
            self.config = config
            self.packer = Packer(self.path, config)

    def store(self) -> Store:
        """Return the open store; opening may block on the disk and on the writer lock.

        Raises:
            LogClosed: after ``close``, before ``open``.
            LogError: the directory cannot be used.
            UsageError: it is open in this process with another configuration.
        """
        with self._lock:
            return self._store_locked()

    async def opened(self) -> Store:
        """Return the open store; open it on a thread, once for all callers."""
        store = self.current
        if store is not None and store.usable:
            return store
        blocking.need_loop()
        self._notify_tests()
        import asyncio  # noqa: PLC0415 - whoever waits here has it

        return await asyncio.wrap_future(self._open_on_thread())

    async def port(self) -> LoopPort:
        """Return the running loop's port to the store, with room for a request."""
        store = self.current
        if store is None or not store.usable:
            store = await self.opened()
        port = store.port()
        if port.full:
            await port.room()
        return port

    async def patiently(self, send: Callable[[LoopPort], Awaitable[T]]) -> T:
        """Send a request, and retry while the log is full or locked by another process.

        Raises:
            LogError: the log is closed or failed here, so a retry would not help.
        """
        seconds = 0.0
        while True:
            try:
                return await send(await self.port())
            except (errors.AppendFailed, errors.LogLocked) as error:
                import asyncio  # noqa: PLC0415 - the caller runs in a loop of it
                import logging  # noqa: PLC0415 - few logs refuse

                if seconds == _PAUSE_SECONDS_LOGGED:
                    log = logging.getLogger("taskq")
                    log.warning("%s: a step waits until the log takes it: %s", self.path, error)
                seconds = min(max(2 * seconds, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX)
                await asyncio.sleep(seconds)

    async def ready_for_step(self) -> None:
        """Wait until the log accepts writes and has room for a step that is about to run.

        Raises:
            LogError: as ``patiently``.
        """
        store = self.current
        if store is None or not store.takes_writes:
            await self.patiently(lambda port: port.admit(_STEP_BYTES))

    def reopen(self) -> None:
        """Allow the next use to open the directory again after ``close``."""
        with self._lock:
            self._closed = False

    def enter(self, count: int = 1) -> None:
        """Count a block that needs the log open; -1 removes a block."""
        with self._lock:
            self._blocks = max(self._blocks + count, 0)

    def close(self, *, block_ends: bool = False) -> None:
        """Drain and close; block until every request is answered. Legal twice.

        Args:
            block_ends: close only if no other block needs the log.
        """
        if self.current is not None:
            inside.refuse_inside(self.path)
        with self._lock:
            self.enter(-1 if block_ends else -self._blocks)
            if self._blocks:
                return
            store, self.current = self.current, None
            self._closed = True
            if store is not None:
                store.close()

    async def aclose(self, *, block_ends: bool = False) -> None:
        """Do as ``close``, off the event loop."""
        if self.current is None and self._opening is None:
            self._closed, self._blocks = True, 0
            return
        await blocking.off_loop(functools.partial(self.close, block_ends=block_ends))

    def check_tag(self, tag: str, lsn: int) -> None:
        """Refuse an id of another log, if the store is open.

        Raises:
            WrongLog: the tag is not the store's.
        """
        store = self.current
        if store is not None and not store.tag.takes(tag, lsn):
            raise store.tag.refusal(tag, lsn, self.path)

    def send_sync(
        self, spec: requests.EnqueueSpec, body: bytes, extras: model.Extras | None
    ) -> int | requests.Duplicate:
        """Enqueue one job from a thread, blocking until the answer is durable."""
        return self.thread_port().enqueued(spec, body, extras)

    async def pack(self, given: Loose) -> requests.Item:
        """Return the job as an item for a port, its payload packed.

        Raises:
            PayloadTooLarge: the payload is over its limit.
            LogError: the log could not be opened, or the disk refused a file.
        """
        (item,) = await self.pack_many([given])
        return item

    def pack_sync(self, given: Loose) -> requests.Item:
        """Do as ``pack``, blocking this thread."""
        (item,) = self.pack_many_sync([given])
        return item

    async def pack_many(self, given: list[Loose]) -> list[requests.Item]:
        """Do as ``pack`` for many jobs; if one is refused, none is enqueued."""
        if given:
            await self.opened()
        return await self.packer.items(given)

    def pack_many_sync(self, given: list[Loose]) -> list[requests.Item]:
        """Do as ``pack_many``, blocking this thread."""
        if given:
            self.store()
        return self.packer.items_sync(given)

    async def send_many(
        self, items: list[requests.Item] | requests.Plain, move: sources.Move | None = None
    ) -> list[int | requests.Duplicate]:
        """Enqueue a transaction; an empty one does not open the directory.

        With ``move``, the transaction also changes a source's position.

        Raises:
            PayloadTooLarge: the transaction is over TRANSACTION_BYTES_MAX.
        """
        items, count = _transaction(items, move)
        if move is not None:
            port = await self.port()
            return await port.ingest(requests.Ingest(move, items))
        if not count:
            return []
        port = await self.port()
        return await port.enqueue_many(items)

    def send_many_sync(
        self, items: list[requests.Item] | requests.Plain
    ) -> list[int | requests.Duplicate]:
        """Do as ``send_many``, from a thread, blocking until the answer is durable."""
        items, count = _transaction(items)
        if not count:
            return []
        return self.thread_port().enqueue_many(items).result()

    async def transact(self, bundle: requests.Bundle) -> requests.Done:
        """Write a transaction; if a part of it raises, nothing was written."""
        if not (bundle.settlements or bundle.cancels):
            # Only new jobs: on a full disk they are refused before changes that free space.
            return requests.Done([], await self.send_many(list(bundle.items)))
        port = await self.port()
        return await port.transact(bundle)

    def thread_port(self) -> ThreadPort:
        """Return the port for threads, once it has room.

        Raises:
            LogError: the log cannot be opened.
        """
        store = self.current
        if store is None or not store.usable:
            store = self.store()
        port = store.thread_port
        if port.full:
            port.room()
        return port

    def _store_locked(self, *, is_notified: bool = False) -> Store:
        store = self.current
        if store is not None and store.usable:
            return store
        return self._first_store(is_notified=is_notified)

    @inside.uninterrupted
    def _first_store(self, *, is_notified: bool) -> Store:
        if self.refusal:
            raise errors.UsageError(self.refusal)
        if self._closed:
            raise errors.LogClosed(
                f"{self.path}: closed; to go on, await open() or enter it with async with"
            )
        if not is_notified:
            self._notify_tests()
        if os.path.exists(f"{self.path}/{SHARDS_FILE}"):  # noqa: PTH110 - as above
            raise errors.UsageError(
                f"{self.path} has shards: open them with TaskQ(shards=Shards(...)), or one of them"
            )
        _check_threads()
        tracing.look()
        from taskq.log.store.store import open_store  # noqa: PLC0415 - see the module's docstring

        store = open_store(self.path, self.config)
        self._tag = store.tag
        self.current = store
        return store

    def _notify_tests(self) -> None:
        # On the caller's thread: the report contains the caller's line.
        plugin = sys.modules.get(_PYTEST_PLUGIN)
        if plugin is not None and not self._closed:
            plugin.on_open(self.path, caller)

    def _open_on_thread(self) -> Future[Store]:
        from concurrent.futures import Future  # noqa: PLC0415 - asyncio has loaded it

        from taskq.log.machine.threads import start_thread  # noqa: PLC0415 - as above

        with self._lock:
            opening = self._opening
            if opening is None:
                opening = Future()
                # Set to running at once, so that a caller who gives up cannot cancel it.
                opening.set_running_or_notify_cancel()
                # A daemon thread: waiting for a stopped process's lock must not keep this process
                # alive.
                start_thread(functools.partial(self._open_for, opening), "taskq-open")
                self._opening = opening
            return opening

    def _open_for(self, opening: Future[Store]) -> None:
        try:
            with self._lock:
                store = self._store_locked(is_notified=True)
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it, whatever it is
            self._opening = None
            opening.set_exception(error)
        else:
            self._opening = None
            opening.set_result(store)

    def _renew_after_fork(self) -> None:
        self._blocks = 0
        # A thread of the parent may have held the lock at the fork, and does not exist here.
        self._lock = threading.RLock()
        self._opening = None


_CONNECTIONS: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()


def _renew_all_after_fork() -> None:
    for connection in list(_CONNECTIONS):
        connection._renew_after_fork()


forks.on_fork(_renew_all_after_fork)


def _check_threads() -> None:
    """Refuse green threads: the storage thread would never run while its caller waits."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("thread", "select"))):
        raise errors.UsageError(
            "eventlet has replaced threads or select in this process, and a log needs real ones: "
            "call eventlet.monkey_patch(thread=False, select=False)"
        )


def _transaction(
    items: list[requests.Item] | requests.Plain, move: sources.Move | None = None
) -> tuple[list[requests.Item] | requests.Plain, int]:
    """Return jobs as items, and their number; refuse them if they are too large together."""
    from taskq.log.decide.enqueue import together  # noqa: PLC0415 - declaring an app needs no log

    items = together(items)
    count = len(items.bodies if isinstance(items, requests.Plain) else items)
    size = transaction_bytes(items)
    if size > model.TRANSACTION_BYTES_MAX:
        what, remedy = f"the transaction of {count} jobs", "enqueue them in several calls"
        if move is not None:
            what += f" from source {move.name!r}"
            remedy = "ingest fewer at a time, each time with the position after them"
        raise errors.PayloadTooLarge(what, size, model.TRANSACTION_BYTES_MAX, remedy)
    return items, count


def split_job_id(job: JobId) -> tuple[str, int]:
    """Return the log's tag, "" for a number alone, and the job's lsn."""
    job_id = getattr(job, "id", job)
    return parsing.split_id(str(job_id).strip() if type(job_id) is int else job_id)
