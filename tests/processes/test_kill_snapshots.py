"""Kill -9 while snapshots are written: those that have their name are true, and no lock is left."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from taskq.log.read.reader import open_journal
from taskq.log.requests import ClaimRequest
from tests.log.told import fold_of, told
from tests.processes.harness import MODES, Child, open_here

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.core.model import Durability


def behind_and_total(path: Path) -> tuple[int, int]:
    """Records folded with snapshots, and without; that makes no difference otherwise."""
    journals = open_journal(str(path)), open_journal(str(path))
    now_ns = time.time_ns()
    some, every = (
        fold_of(journal, trusts_snapshots=trusts)
        for journal, trusts in zip(journals, (True, False), strict=True)
    )
    assert told(some, now_ns) == told(every, now_ns)
    for journal in journals:
        journal.close()
    return some.caught_up, every.caught_up


@pytest.mark.parametrize("durability", MODES)
def test_a_worker_that_is_killed_while_it_writes_snapshots_leaves_none_that_lies(
    tmp_path: Path, durability: Durability, caplog: pytest.LogCaptureFixture
) -> None:
    """Two at a time: only one of them writes, and when it dies the other does."""
    chance = random.Random(durability)
    path = tmp_path / "log"
    saved = 0
    for _ in range(3):
        with ExitStack() as stack:
            children = [
                stack.enter_context(Child("snapshooting.py", path, durability)) for _ in range(2)
            ]
            for child in children:
                for _ in range(chance.randrange(10, 30)):
                    child.expect("round")
            for child in children:
                child.kill()
        behind, total = behind_and_total(path)
        saved += total - behind
    assert saved
    # Two of each facet are kept, and a kill may come before the oldest of three is removed.
    assert 2 <= len(list((path / "snapshot").glob("*.snap"))) <= 6
    store = open_here(path)
    assert store.thread_port.claim(ClaimRequest(1)).result(10)
    store.close()
    assert "is passed over" not in caplog.text
