"""``python -m examples.hub``: logs of a fleet reach a hub byte for byte, despite kills."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import track

from examples.fleet.check import check_tables, show_differences, workplace
from examples.fleet.devices import make_fleet
from examples.fleet.fold import job_row, read_logs
from taskq.engine import Border, DurableLog, LocalDisk, LogReader
from taskq.errors import LogError
from taskq_plugins.hub.line import Line
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import sync

from .line import BadLine, HubProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

_AT_A_TIME: Final = 8
_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.02
#: The hub is killed after this time at the latest.
_PATIENCE_SECONDS: Final = 2.0


@click.command()
@click.option("--devices", default=50, show_default=True, type=click.IntRange(1, 1_000))
@click.option("--hours", default=6, show_default=True, type=click.IntRange(6, 240))
@click.option("--kills", default=10, show_default=True, help="How often the hub is killed with -9.")
@click.option("--drops", default=0.1, show_default=True, help="Of the pieces the line breaks at.")
@click.option("--tables/--no-tables", default=True, help="Compare the pipeline's tables, too.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Keep all in this new directory.  [default: nothing is kept]",
)
def main(
    devices: int, hours: int, kills: int, drops: float, *, tables: bool, work: Path | None
) -> None:
    """Let a fleet's logs come to a hub over a bad line, kill the hub, and compare every byte."""
    began, console = time.monotonic(), Console()
    with workplace(work) as root:
        logs, hub = root / "logs", root / "hub"
        made = make_fleet(logs, devices, hours)
        for line in track(made, "devices at work", devices, console=console):
            console.print(line, end="")
        paths = {file.parent: file.relative_to(logs).parts[0] for file in logs.rglob("taskq.json")}
        tokens = {path: Registry(hub).enroll(device) for path, device in sorted(paths.items())}
        killed = _Killed(HubProcess(hub), kills, sum(map(_size, tokens)))
        console.print(asyncio.run(_collect(tokens, killed, drops)))
        wrong = list(_differences(logs, hub / "devices"))
        count, verdict = len(list(hub.rglob("*.log"))), "DIFFERENT" if wrong else "equal"
        console.print(f"{count} segments: {verdict}")
        show_differences(console, wrong)
        is_wrong = bool(wrong)
        if tables:
            is_wrong |= check_tables(console, hub / "devices", root / "lake") > 0
    console.print(f"done in {time.monotonic() - began:.0f} s")
    sys.exit(is_wrong)


class _Killed:
    """A hub that is killed ``kills`` times, evenly spread over the bytes to send."""

    def __init__(self, server: HubProcess, kills: int, total: int) -> None:
        self.server = server
        self._kills = kills
        self._total = total

    async def run(self) -> None:
        server, began = self.server, time.monotonic()
        while server.kills < self._kills:
            is_slow = time.monotonic() - began > _PATIENCE_SECONDS
            enough = self._total * (server.kills + 1) // (self._kills + 2)
            if is_slow or server.size() >= enough:
                await server.kill()
                began = time.monotonic()
            await asyncio.sleep(_LOOK_SECONDS)


async def _collect(tokens: dict[Path, str], killed: _Killed, drops: float) -> str:
    """Send every log to the hub, with the token of its device."""
    server, turns = killed.server, asyncio.Semaphore(_AT_A_TIME)
    await server.start()
    try:
        async with BadLine(server.port, drops) as bad:

            async def send(path: Path) -> int:
                async with turns:
                    line = Line(f"http://127.0.0.1:{bad.port}", tokens[path])
                    try:
                        return await _send(path, line)
                    finally:
                        await line.close()

            killing = asyncio.create_task(killed.run())
            tries = sum(await asyncio.gather(*map(send, tokens)))
            await killing
            # The next session repairs the damage of the last kill.
            tries += sum(await asyncio.gather(*map(send, tokens)))
            return (
                f"{len(tokens)} logs came after {tries} tries: the line broke {bad.dropped} "
                f"times, the hub was killed {server.kills} times"
            )
    finally:
        server.stop()


async def _send(path: Path, line: Line) -> int:
    """Try until the hub has the log; return the number of tries."""
    tries = 1
    while True:
        try:
            await sync(str(path), line)
        except LogError:
            await asyncio.sleep(random.uniform(0, _RETRY_SECONDS))
            tries += 1
        else:
            return tries


def _size(path: Path) -> int:
    """Return the bytes of a log to send; its last file is longer, since space is preallocated."""
    log = DurableLog(LocalDisk(), str(path))
    try:
        return log.bytes_after(Border(log.segments[0]))
    finally:
        log.close()


def _differences(logs: Path, copies: Path) -> Iterator[str]:
    """Yield differences between the copies and the devices' logs: bytes, damage, jobs."""
    for identity in sorted(logs.rglob("taskq.json")):
        path = identity.parent
        log = DurableLog(LocalDisk(), str(path))
        copy = copies / path.relative_to(logs).parts[0] / str(log.identity.log_id)
        names = {file.name for file in (copy / "log").glob("*.log")}
        for segment in log.segments:
            name, size = f"{segment:020}.log", log.end_of(segment).offset
            names.discard(name)
            if (copy / "log" / name).read_bytes() != (path / "log" / name).read_bytes()[:size]:
                yield f"{copy / 'log' / name} is not what the device has"
        log.close()
        yield from (f"{copy / 'log' / name}: the device has no such segment" for name in names)
        with LogReader.open(str(copy)) as reader:
            yield from (f"{copy}: {damage}" for damage in reader.verify().damage)
    theirs, ours = ([job_row(log, view) for log in read_logs(root) for view in log.views]
                    for root in (logs, copies))  # fmt: skip
    for rows in (theirs, ours):
        rows.sort(key=lambda row: (row["log_id"], row["job"]))
    if theirs != ours:
        yield "the jobs of the copies are not those of the devices"


if __name__ == "__main__":
    main()
