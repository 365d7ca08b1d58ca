"""A log that others may only read, as ``taskq.json`` says, is written to by nobody."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.core.errors import FormatError, LogError
from taskq.log.read.reader import LogReader
from taskq.log.segments.identity import REPLICA, read_identity
from tests.log.world import PATH, World
from tests.machine.crashable import CrashableDisk


def _mark(path: Path, *features: str) -> None:
    values = json.loads((path / "taskq.json").read_text())
    values["features"]["read_only_compat"] = list(features)
    (path / "taskq.json").write_text(json.dumps(values))


def _tree(path: Path) -> dict[str, str]:
    return {
        str(item.relative_to(path)): hashlib.sha256(item.read_bytes()).hexdigest()
        for item in path.rglob("*")
        if item.is_file()
    }


async def _filled(path: Path) -> str:
    async with TaskLog.open(path) as log:
        return await log.put(b"one")


async def _enqueue(path: Path) -> None:
    async with TaskLog.open(path) as log:
        await log.put(b"two")


@pytest.mark.parametrize("write", [_enqueue])
@pytest.mark.parametrize(
    ("feature", "error", "says"),
    [(REPLICA, LogError, "copy"), ("sealed-7", FormatError, r"\['sealed-7'\]")],
)
async def test_a_writer_refuses_what_it_may_only_read_and_leaves_every_file_as_it_is(
    tmp_path: Path,
    write: Callable[[Path], Awaitable[None]],
    feature: str,
    error: type[LogError],
    says: str,
) -> None:
    path = tmp_path / "edge-7"
    job = await _filled(path)
    _mark(path, feature)
    before = _tree(path)
    with pytest.raises(error, match=says) as raised:
        await write(path)
    assert "edge-7" in str(raised.value)
    assert _tree(path) == before
    with LogReader.open(str(path)) as reader:
        view = reader.job(reader.find_job(job))
    assert view is not None
    assert view.payload == b"one"
    assert _tree(path) == before


def test_a_feature_that_is_added_leaves_the_read_only_ones_where_they_are() -> None:
    world = World()
    first = world.process()
    path = f"{PATH}/taskq.json"
    values = json.loads(world.machine.content(path))
    values["features"]["read_only_compat"] = ["sealed-7"]
    world.machine.put(path, json.dumps(values).encode())
    first.journal.allow(("records-4",))
    identity = read_identity(CrashableDisk(world.machine), PATH)
    assert identity is not None
    assert identity.incompat == {"records-4"}
    assert identity.read_only == {"sealed-7"}
