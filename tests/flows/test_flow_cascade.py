"""Flows whose end takes more than one frame come to it by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ, chain
from taskq.errors import JobCancelled
from taskq.log.decide import ends

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_flow_is_cancelled_to_its_end_where_nobody_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame cancels so many held jobs; the next one comes though nothing else happens."""
    monkeypatch.setattr(ends, "FOLLOWED_MAX", 1)
    app = TaskQ(tmp_path)

    @app.task
    async def part(number: int = 0) -> int:
        return number

    async with app:
        handle = await chain(part.call(1), part.step(), part.step(), part.step()).enqueue()
        await handle.jobs[-1].cancel()
        with pytest.raises(JobCancelled):
            await handle.result(timeout=10)
