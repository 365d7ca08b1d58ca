"""Dead letters and paused queues where compaction takes the log away from under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskq.log.read.selection import WaitingFilter, letters, waiting_page
from taskq.log.requests import Op, Withdrawal
from tests.effort import grows, some
from tests.log.tending import meaning
from tests.log.upkeep.test_compaction import KEYS, Random

if TYPE_CHECKING:
    from tests.log.world import Process


def requeue(process: Process, jobs: list[int]) -> list[Any]:
    process.catch_up()
    answers: list[Any] = process.ask(Op.REQUEUE, letters(process.committer.sight, jobs).items)
    return answers


# -- any history ----------------------------------------------------------------------------------

ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "delay", "run", "fail", "die", "die", "hold", "fill", "tend", "pass",
             "step", "requeue", "requeue", "purge", "pause", "resume", "withdraw"]
        ),
        st.integers(0, 10**6),
        KEYS,
        st.booleans(),
    ),
    max_size=40,
)  # fmt: skip


class History(Random):
    """A random history with requeues, purges and pauses."""

    def act(self, name: str, number: int, key: bytes | None, other: bool) -> None:
        process = self.processes[number % 2]
        if name in ("requeue", "purge"):
            agenda = process.catch_up().need_agenda()
            dead = [chunk.ids[index] for chunk, index in agenda.dead]
            jobs = sorted({dead[number % len(dead)], dead[number // 7 % len(dead)]}) if dead else []
            if name == "requeue":
                requeue(process, jobs)
            else:
                process.ask(Op.PURGE, jobs)
        elif name in ("pause", "resume"):
            queue = "other" if other else "default"
            process.ask(Op.PAUSE if name == "pause" else Op.RESUME, queue)
        elif name == "withdraw":
            process.catch_up()
            result = waiting_page(
                process.committer.sight, WaitingFilter(), 0, 2**62, number % 5 + 1
            )
            process.ask(Op.WITHDRAW, Withdrawal(result.items))
        else:
            super().act(name, number, key, other)

    def fill(self, process: Process) -> None:
        paused = process.catch_up().need_agenda().queues.paused
        for queue in sorted(paused):
            process.ask(Op.RESUME, queue)
        super().fill(process)
        for queue in sorted(paused):
            process.ask(Op.PAUSE, queue)


@given(acts=ACTS)
@grows
@settings(max_examples=some(8, 60), deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(180)
def test_requeues_purges_and_pauses_mean_the_same_after_compaction(
    acts: list[tuple[str, int, Any, bool]],
) -> None:
    run = History()
    for act in acts:
        run.act(*act)
    for process in run.processes:
        run.fill(process)
    run.act("tend", 0, None, False)
    now_ns = run.world.clock.wall_ns()
    live = [meaning(process.catch_up(), now_ns) for process in run.processes]
    assert live[0] == live[1]
    assert meaning(run.world.fold(), now_ns) == live[0]
