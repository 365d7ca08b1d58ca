"""A paid answer of a model is not asked for again after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.agent.__main__ import main
from examples.agent.app import app


async def test_an_agent_that_is_killed_goes_on_and_pays_each_answer_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It dies while the third of four answers is on its way: that one alone is asked for again."""
    before = app.data_dir
    try:
        await main(tmp_path / "log")
    finally:
        await app.close()
        app.data_dir = before
    killed, answer, bill = capsys.readouterr().out.splitlines()
    assert "3rd time" in killed
    assert answer == "Fuji is 2184 m higher than Aso."
    assert bill == "asked 5 times, paid 4 answers"
