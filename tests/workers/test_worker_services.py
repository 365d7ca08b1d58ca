"""The background parts of a worker: started before the first claim, stopped after the last job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.core.errors import LogError

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.log.store import Store


class Part:
    """Notes what it is told."""

    def __init__(self, said: list[str], name: str) -> None:
        self._said = said
        self._name = name

    def start(self, store: Store) -> None:
        assert store.usable
        self._said.append(f"{self._name} starts")

    def drain(self) -> None:
        self._said.append(f"{self._name} drains")

    async def leave(self) -> None:
        self._said.append(f"{self._name} leaves")


class Failing(Part):
    """Raises whatever it is told."""

    def drain(self) -> None:
        raise ValueError("cannot drain")

    async def leave(self) -> None:
        raise ValueError("cannot leave")


async def test_parts_live_as_long_as_their_worker(tmp_path: Path) -> None:
    said: list[str] = []
    async with TaskQ(tmp_path) as app:
        worker = app.worker()
        worker.services.add(Part(said, "one"))  # type: ignore[attr-defined]
        worker.services.add(Part(said, "two"))  # type: ignore[attr-defined]
        async with worker:
            assert said == ["one starts", "two starts"]
            worker.services.add(Part(said, "late"))  # type: ignore[attr-defined]
            assert said[2:] == ["late starts"]
    assert said[3:6] == ["late drains", "two drains", "one drains"]
    assert said[6:] == ["late leaves", "two leaves", "one leaves"]


async def test_a_part_that_fails_keeps_no_worker_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    async with TaskQ(tmp_path) as app:
        worker = app.worker()
        worker.services.add(Part(said, "one"))  # type: ignore[attr-defined]
        worker.services.add(Failing(said, "two"))  # type: ignore[attr-defined]
        with caplog.at_level(logging.ERROR, "taskq.worker"):
            async with worker:
                pass
    assert said == ["one starts", "two starts", "one drains", "one leaves"]
    assert [record.getMessage() for record in caplog.records] == [
        "Failing failed as the worker drained",
        "Failing failed as the worker stopped",
    ]


async def test_a_part_that_cannot_start_stops_its_worker(tmp_path: Path) -> None:
    class Unable(Part):
        def start(self, store: Store) -> None:
            raise LogError(f"this part cannot work in {store.config.durability}")

    async with TaskQ(tmp_path) as app:
        worker = app.worker()
        worker.services.add(Unable([], "one"))  # type: ignore[attr-defined]
        with pytest.raises(LogError, match="cannot work in"):
            async with worker:
                raise AssertionError("it started")
