"""The table of operations."""

from __future__ import annotations

from taskq.log.requests import Op, Trait, ops_that
from tests.log.world import World


def test_every_operation_is_decided_in_one_place() -> None:
    decided = set(World().process().committer.operations.table)
    of_many_answers = {Op.CLAIM, Op.SETTLE_NOWAIT, Op.SUCCEED_NOWAIT}
    no_decisions = {Op.OUTCOME, *ops_that(Trait.BEHIND)}
    assert decided.isdisjoint(of_many_answers | no_decisions)
    assert decided | of_many_answers | no_decisions == set(Op)
