"""A look at logs sees all changes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from taskq_plugins.fleet import inventory, places
from taskq_plugins.fleet.inventory import SegmentFile
from taskq_plugins.spark.source import logs as fleet_logs
from tests.fleet.made_logs import MadeLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskq_plugins.spark.source.logs import LogInventory


def seen(hub: Path) -> tuple[list[LogInventory], int]:
    """Return the logs of a directory, and how many files of them were opened to see them."""
    opened = mock.Mock(wraps=SegmentFile)
    with (
        mock.patch.object(inventory, "SegmentFile", opened),
        mock.patch.object(fleet_logs, "SegmentFile", opened),
    ):
        sight = fleet_logs.look(hub)
        return sorted(sight.logs.values(), key=lambda log: log.log.device), opened.call_count


def test_a_log_that_is_silent_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [MadeLog(tmp_path / f"edge-{number}") for number in range(2)]
    for log in logs:
        log.enqueue()
    assert seen(tmp_path)[1] > 0
    assert seen(tmp_path)[1] > 0, "what changed just now may have changed once more"
    monkeypatch.setattr(places, "SETTLED_NS", -(10**18))
    before, _ = seen(tmp_path)
    again, opened = seen(tmp_path)
    assert opened == 0
    assert [*map(id, before)] == [*map(id, again)]
    logs[1].enqueue()
    after, opened = seen(tmp_path)
    assert after[0] is before[0]
    assert after[1].end.mark.next_lsn == 3
    assert opened > 0


def grown(log: MadeLog) -> None:
    log.rotate()
    log.enqueue()


def lacking(log: MadeLog) -> None:
    log.frames[0].path.unlink()


def declared(log: MadeLog) -> None:
    with (log.path / "breaks.jsonl").open("a") as file:
        file.write(json.dumps({"n": 2}) + "\n")


def marked(log: MadeLog) -> None:
    (log.path / "failed").write_text(json.dumps({"durable_lsn": 1}))


def replaced(log: MadeLog) -> None:
    shutil.rmtree(log.path)
    MadeLog(log.path).enqueue()


def named_otherwise(log: MadeLog) -> None:
    other = MadeLog(log.path.parent / "other" / "edge")
    (other.path / "taskq.json").replace(log.path / "taskq.json")


@pytest.mark.parametrize("change", [grown, lacking, declared, marked, replaced, named_otherwise])
def test_whatever_changes_in_a_log_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[MadeLog], None]
) -> None:
    monkeypatch.setattr(places, "SETTLED_NS", -(10**18))
    log = MadeLog(tmp_path / "edge")
    log.enqueue()
    log.rotate()
    log.enqueue()
    (log.path / "breaks.jsonl").touch()
    (before,), _ = seen(tmp_path)
    newest_ns = max(path.stat().st_ctime_ns for path in [log.path, *log.path.rglob("*")])
    clock = tmp_path / "clock"
    clock.touch()
    while clock.stat().st_ctime_ns <= newest_ns:  # a few milliseconds, to the next tick
        clock.touch()
    change(log)
    (after,), _ = seen(tmp_path)
    assert after is not before
