"""A fleet's logs reach a hub, as a user runs it, only smaller."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.hub.__main__ import main


def test_logs_come_to_a_hub_byte_for_byte_over_a_line_that_drops(tmp_path: Path) -> None:
    words = ["--devices", "2", "--kills", "2", "--no-tables", "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert re.search(
        r"2 logs came after \d+ tries: .*the\s+hub\s+was\s+killed 2\s+times", result.output
    )
    assert "2 segments: equal" in result.output


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_fifty_devices_with_the_tables_of_all(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--work", str(tmp_path / "work")])
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"rows, equal to the Python fold", result.output)) == 6
