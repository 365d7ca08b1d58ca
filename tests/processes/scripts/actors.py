"""Processes with one task at a log each, which print lines.

Usage: actors.py NAME DIRECTORY ARGUMENT...     (NAME is a function below, and so are its arguments)
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskq import Put, TaskLog
from taskq.core.errors import TaskqError
from taskq.core.model import SECOND_NS, Durability
from taskq.core.records import Kind
from taskq.core.views import ProgressView
from taskq.log.config import SEGMENT_BYTES_MIN, LogConfig
from taskq.log.format.codec import FRAME_MAGIC_BYTES
from taskq.log.machine.threads import Pending
from taskq.log.read.reader import LogReader
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store
from taskq.log.upkeep import snapshots
from tests.processes.striker import strike

SPEC = EnqueueSpec()


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def opened(path: str, durability: str = "os", **options: Any) -> Store:
    return open_store(path, LogConfig(durability=Durability(durability), **options))


def ago(body: str) -> int:
    return time.monotonic_ns() - int(body) if body.isdecimal() else 0


# -- a session by lines ---------------------------------------------------------------------------


class Session:
    def __init__(self, store: Store) -> None:
        self.port = store.thread_port
        self.held: list[Delivery] = []

    def enqueue(self, body: str) -> None:
        tell(f"enqueued {self.port.enqueue(SPEC, body.encode()).result()}")

    def claim(self, count: str = "1") -> None:
        future: Pending[list[Delivery]] = self.port.claim(ClaimRequest(int(count)))
        tell("waiting")
        for delivery in future.result():
            body = delivery.payload.decode()
            tell(f"claimed {delivery.job} {delivery.attempt} {ago(body)} {body}")
            self.held.append(delivery)

    def settle(self) -> None:
        done = [Settlement(Kind.SUCCEEDED, job) for job in self.held]
        self.held = []
        tell(f"settled {self.port.settle(done).result()}")

    def outcome(self, lsn: str) -> None:
        future = self.port.outcome(int(lsn))
        tell("waiting")
        result = future.result()
        body = (result.body or b"").decode()
        tell(f"outcome {result.state.name} {ago(body)} {body}")


def answer(path: str, *options: str) -> None:
    """Obey lines: enqueue BODY | claim | settle | outcome LSN | close | exit."""
    values: dict[str, Any] = dict(option.split("=") for option in options)
    if "lock_wait_seconds" in values:
        values["lock_wait_seconds"] = float(values["lock_wait_seconds"])
    values["exclusive"] = values.get("exclusive") == "True"
    try:
        store = opened(path, **values)
    except TaskqError as error:
        tell(f"refused {type(error).__name__}: {error}")
        return
    tell(f"open {store.owner}")
    session = Session(store)
    for line in sys.stdin:
        word, *operands = line.split()
        if word == "exit":
            return
        try:
            if word == "close":
                store.close()
                tell("closed")
            else:
                getattr(session, word)(*operands)
        except TaskqError as error:
            tell(f"error {type(error).__name__}: {error}")


# -- many jobs -------------------------------------------------------------------------------------


def ingest_file(path: str, source: str, milliseconds: str) -> None:
    with TaskLog.open(path) as log, open(source, "rb") as file:  # noqa: PTH123 - tells its place
        strike("time", int(milliseconds))
        done = log.position_sync("lines")
        file.seek(done or 0)
        while lines := [line for line in (file.readline() for _ in range(20)) if line]:
            jobs = [Put(payload=line.rstrip()) for line in lines]
            log.ingest_sync("lines", jobs, file.tell(), after=done)
            done = file.tell()


def live(path: str, step: str) -> None:
    """Open, use and close a log, and die at a step: an open, a rename, a lock and so on."""
    strike("events", int(step))
    store = opened(path, "fsync", lock_wait_seconds=5)
    tell(str(store.thread_port.enqueue(SPEC, b"x").result()))
    taken = store.thread_port.claim(ClaimRequest(1)).result()
    ends = [Settlement(Kind.SUCCEEDED, delivery) for delivery in taken]
    store.thread_port.settle(ends).result()
    tell(str(store.thread_port.enqueue(SPEC, b"x").result()))
    store.close()
    os._exit(0)


def use_all(path: str, umask: str = "", user: str = "", *groups: str) -> None:
    """Make every kind of file as one of the users, who worked in a log elsewhere before."""
    if umask:
        os.umask(int(umask, 8))
    if user:
        with tempfile.TemporaryDirectory() as elsewhere:
            asyncio.run(_use_all(Path(elsewhere) / "log", hold=False))
        group, *others = map(int, groups)
        os.setgroups(others)
        os.setresgid(group, group, group)
        os.setresuid(*[int(user)] * 3)
    asyncio.run(_use_all(Path(path), hold=True))
    tell("closed")


async def _use_all(path: Path, *, hold: bool) -> None:
    snapshots.CLOSE_BYTES_MIN = 1  # type: ignore[misc]
    options = {"durability": "os", "segment_bytes": SEGMENT_BYTES_MIN, "reserve": 4_096}
    async with TaskLog.open(path, **options) as log:  # type: ignore[arg-type]
        for _ in range(3):
            await log.put(os.urandom(SEGMENT_BYTES_MIN))
        await log.put(os.urandom(2**20 + 1), key=os.urandom(8))
        (delivery,) = await log.claim(wait=10)
        store = log._connection.store()
        store.progress.report(log, 1, 1, ProgressView(0.5, "half", 0))
        await log.ingest("file", [Put(payload=b"a line")], 1)
        async with log.stream(reader=f"reader-{os.getpid()}") as stream:
            async for _ in stream:
                await stream.commit()
                break
        if hold:
            tell("open")
            await asyncio.to_thread(sys.stdin.readline)
        await log.ack(delivery, b"done")
        await log.compact()
    tail = max((path / "log").glob("*.log"))
    with tail.open("ab") as file:
        file.write(b"torn")
    (path / "write.lock").write_bytes(b"")
    async with TaskLog.open(path, **options):  # type: ignore[arg-type]
        pass


# -- some that wait --------------------------------------------------------------------------------


def idle(path: str, seconds: str, lsn: str) -> None:
    """Wait for a job, and for an outcome unless LSN is 0; print the share of a core."""
    store = opened(path)
    port = store.thread_port
    assert port.claim(ClaimRequest(1, wait_until_ns=store.steady_ns())).result() == []
    if int(lsn):
        port.outcome(int(lsn))
    before = time.process_time()
    until = store.steady_ns() + int(float(seconds) * SECOND_NS)
    assert port.claim(ClaimRequest(1, wait_until_ns=until)).result() == []
    tell(f"share {(time.process_time() - before) / float(seconds)}")
    store.close()


def follow_log(path: str, reader: str, durability: str, seconds: str = "") -> None:
    """Stream a log, print each record; with SECONDS the share of a core of a wait."""
    try:
        asyncio.run(_follow_log(path, reader, durability, seconds))
    except TaskqError as error:
        tell(f"error {type(error).__name__}: {error}")


async def _follow_log(path: str, reader: str, durability: str, seconds: str) -> None:
    async with TaskLog.open(path, durability=durability) as log:
        if seconds:
            records = aiter(log.stream())
            await anext(records)
            before = time.process_time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(records), float(seconds))
            tell(f"share {(time.process_time() - before) / float(seconds)}")
            return
        tell(f"open {log._connection.store().owner}")
        async for record in log.stream(reader=None if reader == "-" else reader):
            tell(f"record {record.lsn} {record.kind} {ago((record.payload or b'').decode())}")


def owners(path: str) -> None:
    for view in LogReader.open(path).owners():
        tell(f"{view.owner} {view.alive}")


# -- some that are stopped -------------------------------------------------------------------------


def sigpipe(path: str) -> None:
    """Enqueue a job for each line, and die of SIGPIPE, as command line tools choose to."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    store = opened(path)
    tell("open")
    for _ in sys.stdin:
        tell(f"enqueued {store.thread_port.enqueue(SPEC, b'0').result()}")


def _stop_this_thread() -> None:
    # A signal to the process may take effect some instructions later, in another thread.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop(path: str, place: str, waits: str = "") -> None:
    """Stop oneself before, half-way in or after a write, or as the next in line; then go on."""
    store = opened(path)

    def stop_here() -> None:
        tell("inside")
        _stop_this_thread()

    if place == "turnstile":
        _stop_in_line(store, stop_here)
    else:
        _stop_in_write(store, {"before": 0.0, "half": 0.5, "after": 1.0}[place], stop_here)
    if waits or place == "turnstile":
        tell("open")
        sys.stdin.readline()
    for body in (b"stopped", b"later"):
        tell(f"enqueued {store.thread_port.enqueue(SPEC, body).result()}")
    store.close()


def _stop_in_write(store: Store, share: float, stop_here: Callable[[], None]) -> None:
    disk = store._open.journal.disk
    write = disk.write

    def write_and_stop(descriptor: int, data: bytes, offset: int) -> int:
        if data[:4] != FRAME_MAGIC_BYTES:
            return write(descriptor, data, offset)
        disk.write = write  # type: ignore[method-assign]
        size = int(len(data) * share)
        if size:
            write(descriptor, data[:size], offset)
        stop_here()
        return size + (write(descriptor, data[size:], offset + size) if size < len(data) else 0)

    disk.write = write_and_stop  # type: ignore[method-assign]


def _stop_in_line(store: Store, stop_here: Callable[[], None]) -> None:
    """Stop as soon as the wait for the lock begins, which another process holds."""
    writer = store._open.writer
    on_wait = writer.on_wait

    def wait_and_stop() -> None:
        writer.on_wait = on_wait
        stop_here()

    writer.on_wait = wait_and_stop


def fork_opening(path: str, children: str) -> None:
    """Fork while other threads open and close logs; print the lock files that children inherit."""
    is_over = threading.Event()

    def open_and_close(name: str) -> None:
        while not is_over.is_set():
            opened(name).close()

    def inherited() -> int:
        names = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(entry.readlink().name)
        return sum(name.endswith(".lock") for name in names)

    paths = [f"{path}/{number}" for number in range(3)]
    threads = [threading.Thread(target=open_and_close, args=(name,)) for name in paths]
    for thread in threads:
        thread.start()
    result = 0
    for _ in range(int(children)):
        child = os.fork()
        if not child:
            os._exit(min(inherited(), 100))
        result += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    is_over.set()
    for thread in threads:
        thread.join()
    tell(f"inherited {result}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
