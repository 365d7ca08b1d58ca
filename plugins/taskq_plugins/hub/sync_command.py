"""``taskq sync``: send a log to its hub. It may run for months, so it loads few modules."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import click
from anyio import to_thread
from click.exceptions import Exit

from taskq.cli import log_argument, logs_below, open_reader, over_shards, render, resolve
from taskq.hooks import HubSettings, load_settings
from taskq.text import flat
from taskq_plugins.hub import sync as syncing
from taskq_plugins.hub.line import Line, last_note, line_to, token_file
from taskq_plugins.hub.models import HubError, refusal
from taskq_plugins.hub.sync import Verdict

#: Used codes: a code is valid once, but may serve the sync of several logs.
_redeemed: Final = set[str]()
#: Messages about verdicts.
_ODD: Final = {
    **dict.fromkeys(
        (Verdict.OLDER, Verdict.AHEAD, Verdict.DIFFERS),
        "it was set back, so it goes on as another log",
    ),
    Verdict.GAP: "a limit of the log took records before they were sent",
}  # fmt: skip
_PART_BYTES: Final = 4 * 1024 * 1024


@click.command()
@log_argument
@over_shards
@click.option("--url", metavar="URL", help="The hub.  [default: url of [hub] in the settings]")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The token that enroll printed.  [default: token or token_file of [hub]]",
)
@click.option(
    "--code", help="The code that enroll --code printed: exchange it for a token, and keep that."
)
@click.option("--follow", is_flag=True, help="Stay, and send what is written within a second.")
@click.option("--wait", is_flag=True, help="Try until all is there.")
@click.option("--dry-run", is_flag=True, help="Only ask how the hub's copy stands.")
@click.option("--status", is_flag=True, help="Show how it went last, and ask nobody.")
@click.option("--restore", is_flag=True, help="Rebuild DIR from the hub's copy of this device.")
def sync(data_dir: Path | None, **given: Any) -> None:
    """Send a hub the missing part of the log, or of all logs of a root of shards, once, then exit.

    Workers and enqueues go on meanwhile. The hub's copy names the next position, so it does not
    matter how the last try ended.
    """
    if given["restore"]:
        _restore(resolve(data_dir), _line(data_dir, given))
        return
    if given["follow"]:
        asyncio.run(_follow_all(data_dir, given))
        return
    with open_reader(data_dir) as reader:
        path, end = reader.path, reader.journal.next_lsn
    if given["status"]:
        _print_status(path, end, last_note(path))
        return
    line = _line(data_dir, given)
    if given["wait"]:
        done = _run(line, syncing.follow(path, line, at_once=True, once=True))
    else:
        done = _run(line, syncing.sync(path, line, is_dry=given["dry_run"]))
    from taskq.cli import count_of  # noqa: PLC0415 - --follow does not need it

    odd = [_ODD[verdict] for verdict in done.verdicts if verdict in _ODD]
    if given["dry_run"]:
        missing = render.size(done.behind_bytes) if done.behind_bytes else "nothing"
        render.echo("; ".join([f"{path}: {missing} is missing there", *odd]))
        return
    sent = f"{render.size(done.sent_bytes)} sent" if done.sent_bytes else "nothing to send"
    render.echo("; ".join([f"{path}: in sync up to lsn {done.end.next_lsn - 1}", sent, *odd]))
    if any(done.taken):
        jobs, refused, cancelled = done.taken
        came = f"{count_of(jobs)} came, {refused} refused, {cancelled} cancelled"
        render.echo(f"{path}: {came}")


async def _follow_all(data_dir: Path | None, given: dict[str, Any]) -> None:
    async def follow(log: Path) -> None:
        with open_reader(log) as reader:
            path = reader.path
        line = _line(log, given)
        try:
            await syncing.follow(path, line, at_once=True)
        finally:
            await line.close()

    await asyncio.gather(*map(follow, logs_below(resolve(data_dir))))


def _restore(target: Path, line: Line) -> None:
    report = _run(line, _fetched(line, target))
    render.echo(f"{target}: {report.segments} segments, up to lsn {report.next_lsn - 1}")


async def _fetched(line: Line, target: Path) -> Any:
    """Restore a log from the hub's copy; bytes of an earlier try are not fetched again."""
    from taskq.engine import restore, segment_name  # noqa: PLC0415 - only a restore needs it

    logs = json.loads(await _get(line, ""))["logs"]
    if not logs:
        raise HubError(f"{line.url} has nothing of this device")
    log = max(logs, key=lambda log: log["arrived_ns"])
    log_id = UUID(log["log_id"])
    part = target.with_name(f"{target.name}.part") / str(log_id)
    (part / "log").mkdir(parents=True, exist_ok=True)
    await to_thread.run_sync((part / "taskq.json").write_text, log["identity"])
    for lsn, size in log["segments"]:
        place = part / "log" / segment_name(int(lsn))
        place.touch()
        while (start := place.stat().st_size) < size:
            wanted = {"Range": f"bytes={start}-{min(start + _PART_BYTES, size) - 1}"}
            data = await _get(line, f"/{log_id}/segments/{int(lsn):020d}", wanted)
            await to_thread.run_sync(_append, place, data[: size - start])
    report = restore(str(part), str(target))
    shutil.rmtree(part.parent)
    return report


def _append(file: Path, data: bytes) -> None:
    if not data:
        raise HubError(f"the hub has less of {file.name} than it said: try again")
    with file.open("ab") as opened:
        opened.write(data)


async def _get(line: Line, where: str, headers: dict[str, str] | None = None) -> bytes:
    reply = await line.request("GET", f"/logs{where}", headers or {})
    if reply.status not in (200, 206):
        raise refusal(reply.status)
    return reply.content


def _print_status(path: str, end: int, note: dict[str, Any]) -> None:
    """Report the last session; exit with 1 if the log has grown since, or the session failed."""
    if "synced_ns" in note:
        ago = (time.time_ns() - note["synced_ns"]) / 1e9
        render.echo(f"{path}: in sync {ago:.0f} s ago, up to lsn {note['lsn'] - 1} of {end - 1}")
    else:
        render.echo(f"{path}: never in sync")
    if note.get("error"):
        render.echo(flat(f"then: {note['error']}"))
    if note.get("error") or note.get("lsn", 0) < end:
        raise Exit(1)


def _line(data_dir: Path | None, given: dict[str, Any]) -> Line:
    hub = load_settings(None, data_dir=data_dir).hub or HubSettings()
    url = given["url"] or hub.url
    if given["restore"]:  # a person is waiting
        hub = hub.model_copy(update={"requires": (), "metered": "all"})
    if given["code"] and url and given["code"] not in _redeemed:
        line = Line(url, "", None, hub)
        token = _run(line, line.redeem(given["code"].strip()))
        kept = token_file(url)
        kept.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(token)
        _redeemed.add(given["code"])
    return Line(*line_to(hub, url, given["token_file"]), None, hub)


def _run(line: Any, what: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        try:
            return await what
        finally:
            await line.close()

    return asyncio.run(main())
