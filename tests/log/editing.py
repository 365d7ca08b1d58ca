"""Edits of jobs that wait, for histories of logs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from taskq.core.folds.jobtable import STATE_MASK
from taskq.core.model import SECOND_NS, WAITING_STATES
from taskq.log.read.selection import waiting_job
from taskq.log.requests import Edit, Op
from tests.log.world import Process


def found(process: Process, job: int, **wish: Any) -> Edit:
    process.catch_up()
    return Edit(waiting_job(process.committer.sight, job), **wish)


def edit(process: Process, job: int, **wish: Any) -> bool | None:
    answer: bool | None = process.ask(Op.EDIT, found(process, job, **wish))
    return answer


def some_edit(process: Process, chance: random.Random, queues: Sequence[bytes]) -> Edit | None:
    agenda = process.catch_up().need_agenda()
    waiting = [
        chunk.ids[index]
        for chunk, index in agenda.table
        if chunk.metas[index] & STATE_MASK in WAITING_STATES
    ]
    if not waiting:
        return None
    job = chance.choice(waiting)
    span_ns = chance.choice((0, 5, 60)) * SECOND_NS
    date = process.journal.log_time()[0] + span_ns, True
    due = chance.choice((None, (span_ns, False), date))
    if job in agenda.flows.held:
        due = None
    queue = chance.choice((None, *queues))
    return found(process, job, priority=chance.choice((None, 1, 5, 9)), queue=queue, due=due)
