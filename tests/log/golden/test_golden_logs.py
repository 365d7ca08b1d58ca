"""Every golden log opens with its original contents, and goes on."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from taskq import TaskLog
from taskq.connection.connection import Connection
from taskq.core.model import Durability
from taskq.log.config import LogConfig
from taskq.log.read.reader import LogReader
from taskq.testing.sandbox import FakeClock
from tests.log.golden.write import EXPECTED, HERE, said

GOLDEN = sorted(path.stem for path in HERE.glob("*.zip"))


async def opened(name: str, path: Path) -> None:
    with zipfile.ZipFile(HERE / f"{name}.zip") as source:
        source.extractall(path)
    expected = json.loads((path / EXPECTED).read_text())
    assert expected["jobs"]
    assert said(path, expected["seconds"]) == expected
    clock = FakeClock(expected["seconds"])
    with LogReader.open(str(path), clock) as reader:
        assert not reader.verify().damage
    # Else it is the machine's speed that says which lsn is known to be on disk.
    config = LogConfig(clock=clock, durability=Durability.OS)
    async with TaskLog(Connection(str(path), config)) as log:
        ready = sum(row[2] + row[3] for row in expected["queues"] if not row[8])
        assert len(await log.claim(1_000)) == ready, "those that ran are given back"
        assert await log.put(b"goes on")


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_log_of_an_older_version_says_what_it_said_and_goes_on(
    name: str, tmp_path: Path
) -> None:
    await opened(name, tmp_path)
