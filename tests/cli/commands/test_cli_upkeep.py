"""Commands leave a log's upkeep to those that work on it: only they know what they want kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskq.log.upkeep.upkeep import Upkeep
from tests.cli.helpers import taskq

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "words",
    [
        ("put", "x"),
        ("cancel", "-Q", "default", "--yes"),
        ("pause", "default"),
        ("dead", "requeue", "--all", "--yes"),
        ("replay", "--all"),
        ("tail", "--reader", "billing", "-n", "1"),
        ("reader", "ls"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_removes_nothing_by_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Its settings come from the environment and files; an app may have said otherwise in code."""
    assert taskq("put", "x", "-d", tmp_path).exit_code == 0
    looks: list[Upkeep] = []

    def work(upkeep: Upkeep) -> object:
        looks.append(upkeep)
        yield None

    monkeypatch.setattr(Upkeep, "_work", work)
    result = taskq(*words, "-d", tmp_path)
    assert result.exit_code == 0, result.output
    assert not looks


def test_compact_does_what_it_is_told_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taskq("put", "x", "-d", tmp_path).exit_code == 0
    monkeypatch.setattr(Upkeep, "_work", lambda _: pytest.fail("it was not asked to"))
    result = taskq("compact", "-d", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "Nothing to do: no segment is due.\n")
