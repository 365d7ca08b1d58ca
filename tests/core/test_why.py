"""Every reason for a job not to run, and its sentence."""

from functools import partial
from typing import Any, Final

import pytest

from taskq.core.flows import HeldInputs
from taskq.core.folds.agenda import Agenda
from taskq.core.folds.steps import Form, Wait
from taskq.core.model import SECOND_NS, State
from taskq.core.parsing import Tag
from taskq.core.rates import Limit
from taskq.core.views import AttemptView, Hold, JobView, OwnerView, Serving, Waiting
from taskq.core.why import (
    AHEAD_MAX,
    JobFacts,
    Strays,
    UsedLimit,
    Why,
    strays_of,
    used_up,
    waiting_jobs,
    why,
)

_NOW: Final = 1_704_067_200 * SECOND_NS
_MINUTE: Final = 60 * SECOND_NS


def _job(state: State = State.READY, **changes: Any) -> JobView:
    values: dict[str, Any] = {
        "lsn": 7, "job_id": "1a2b3c4d-7", "queue": "mail", "task": "mail.send", "priority": 5,
        "attempt": 0, "attempts_max": 5, "enqueued_ns": _NOW - 3_600 * SECOND_NS,
    }  # fmt: skip
    return JobView(state=state, **(values | changes))


def _worker(running: int = 0, *, alive: bool = True, **serving: Any) -> OwnerView:
    values: dict[str, Any] = {
        "queues": frozenset({"mail"}), "tasks": frozenset({"mail.send"}), "slots": 4,
    }  # fmt: skip
    return OwnerView(
        owner=1, pid=12, host="box", name="worker", started_ns=_NOW, alive=alive, running=running,
        serves=(Serving(**(values | serving)),),
    )  # fmt: skip


_FAILED: Final = (
    AttemptView(number=2, owner=1, started_ns=1, ended_ns=2, outcome="retried", reason="x"),
)
_STARTED: Final = (AttemptView(number=2, owner=1, started_ns=_NOW - 3 * _MINUTE),)
_ONE: Final = (_worker(),)

_OFFLINE: Final = Hold(
    tasks=frozenset({"mail.send"}), is_breaker=False, since_ns=_NOW - 3 * _MINUTE,
    text="it waits for online(a:1), which does not hold (No route to host)",
)  # fmt: skip
_OTHERS: Final = Hold(tasks=frozenset({"other"}), is_breaker=False, text="x", since_ns=_NOW)
_BACKS_OFF: Final = Hold(
    queues=frozenset({"mail"}), is_breaker=True, since_ns=_NOW - _MINUTE,
    text="queue 'mail' backs off after 5 network failures in a row (OSError: no)",
)  # fmt: skip

_facts = partial(
    JobFacts, job=_job(), now_ns=_NOW, directory="/srv/my log", tag=Tag("1a2b3c4d")
)  # fmt: skip

_CASES: Final[list[tuple[Why, str, JobFacts]]] = [
    (Why.SUCCEEDED, "it succeeded 2m ago",
     _facts(job=_job(State.SUCCEEDED, settled_ns=_NOW - 2 * _MINUTE))),
    (Why.CANCELLED, "it was cancelled 1m ago",
     _facts(job=_job(State.CANCELLED, settled_ns=_NOW - _MINUTE))),
    (Why.EXPIRED, "it expired 0s ago, before a worker could run it",
     _facts(job=_job(State.EXPIRED, settled_ns=_NOW))),
    (Why.DEAD, "it died 0s ago: all 5 attempts are spent (ValueError: no)",
     _facts(job=_job(State.DEAD, attempt=5, reason="ValueError: no\nline 2", settled_ns=_NOW))),
    (Why.DEAD, "it died 1m ago: it was rejected",
     _facts(job=_job(State.DEAD, attempt=1, settled_ns=_NOW - _MINUTE))),
    (Why.RUNNING, "it has been running for 3m on 12 (worker on box), attempt 2 of 5",
     _facts(job=_job(State.RUNNING, attempt=2, attempts=_STARTED), owner=_worker())),
    (Why.WORKER_LOST,
     "its process 12 (worker on box) is gone; the next worker that looks takes it back",
     _facts(job=_job(State.RUNNING, attempt=2, attempts=_STARTED),
            owner=_worker(alive=False), workers=_ONE)),
    (Why.WORKER_LOST,
     ("its process 12 (worker on box) is gone; no worker is there to take it back; start one "
     "with: taskq worker MODULE:APP -d '/srv/my log'"),
     _facts(job=_job(State.RUNNING), owner=_worker(alive=False))),
    (Why.EXPIRED,
     ("it expired 1m ago, before a worker could run it; the next worker that looks records "
     "that"),
     _facts(job=_job(expires_ns=_NOW - _MINUTE), workers=_ONE)),
    (Why.NOT_DUE, "it is due in 5m, at 2024-01-01T00:05:00+00:00",
     _facts(job=_job(State.SCHEDULED, due_ns=_NOW + 5 * _MINUTE), paused=True)),
    (Why.NOT_DUE,
     ("attempt 2 of 5 failed (TimeoutError: slow); the next is due in 2m, at "
     "2024-01-01T00:01:30+00:00"),
     _facts(job=_job(State.SCHEDULED, due_ns=_NOW + 90 * SECOND_NS, attempt=2, attempts=_FAILED,
                     reason="TimeoutError: slow\nTraceback"))),
    (Why.PAUSED, "queue 'mail' is paused; let it go on with: taskq resume mail -d '/srv/my log'",
     _facts(paused=True)),
    (Why.NO_WORKER, "no worker runs; start one with: taskq worker MODULE:APP -d '/srv/my log'",
     _facts()),
    (Why.NO_WORKER, "it was put as bytes, and no process claims any: use TaskLog.claim()",
     _facts(job=_job(task=""))),
    (Why.QUEUE_NOT_SERVED, "no worker serves queue 'mail': running workers serve 'images', 'sync'",
     _facts(workers=(_worker(queues=frozenset({"sync", "images"})),))),
    (Why.TASK_UNKNOWN,
     ("no worker of queue 'mail' knows task 'mail.send': start one with the app that "
     "registers it"),
     _facts(workers=(
         _worker(tasks=frozenset({"mail.other"})), _worker(queues=frozenset({"sync"}), tasks=None),
     ))),
    (Why.TASK_UNKNOWN, "it was put as bytes, and no process claims any: use TaskLog.claim()",
     _facts(job=_job(task=""), workers=_ONE)),
    (Why.INPUTS, "it waits for 2 of 3 inputs: 1a2b3c4d-3 (running)",
     _facts(job=_job(State.SCHEDULED), workers=_ONE,
            awaited=HeldInputs(count=2, total=3, named=(("1a2b3c4d-3", "running"),)))),
    (Why.WAITS,
     ("it waits within its run for signal 'paid' and 0 jobs that it called, until "
     "2024-01-01T00:05:00+00:00 at the latest; signal it with: taskq signal 1a2b3c4d-7 paid "
     "JSON -d '/srv/my log'"),
     _facts(job=_job(State.SCHEDULED), workers=_ONE,
            waits=(Wait(Form.EVENT, "paid", 1, _NOW + 5 * _MINUTE), Wait(Form.CALL, "call", 1)))),
    (Why.CONDITION, "it waits for online(a:1), which does not hold (No route to host), for 3m now",
     _facts(workers=(_worker(holds=(_OFFLINE,)),))),
    (Why.NEXT, "nothing is in its way: a worker takes it at any moment",
     _facts(workers=(_worker(holds=(_OFFLINE,)), _worker()))),
    (Why.NEXT, "nothing is in its way: a worker takes it at any moment",
     _facts(workers=(_worker(holds=(_OTHERS,)),))),
    (Why.BREAKER,
     "queue 'mail' backs off after 5 network failures in a row (OSError: no), for 1m now",
     _facts(workers=(_worker(holds=(_OTHERS, _BACKS_OFF)),))),
    (Why.LOCKED, "process 99 (stopped: python app.py) keeps the writer lock: continue or stop it",
     _facts(workers=_ONE, holder="stopped: python app.py", holder_pid=99)),
    (Why.BEHIND_PRIORITY, "812 jobs of higher priority are before it",
     _facts(workers=_ONE, ahead_higher=812)),
    (Why.BEHIND_PRIORITY, "1 job of higher priority and 2 older jobs are before it",
     _facts(workers=_ONE, ahead_higher=1, ahead_older=2)),
    (Why.BEHIND_OLDER, "1 older job is before it", _facts(workers=_ONE, ahead_older=1)),
    (Why.BEHIND_OLDER, "over 10000 older jobs are before it",
     _facts(workers=_ONE, ahead_older=AHEAD_MAX)),
    (Why.CONCURRENCY,
     ("concurrency 4 of send with key '7' is used up by 1a2b3c4d-2, 1a2b3c4d-3, 1a2b3c4d-5 "
     "and 1 more"),
     _facts(workers=_ONE, used_up=UsedLimit(task="send", key=b"7", concurrency=4,
                                            running=(2, 3, 5, 8)))),
    (Why.RATE,
     "rate 10/min of send is used up: the next may start in 2m, 2024-01-01T00:02:00+00:00",
     _facts(workers=_ONE, used_up=UsedLimit(task="send", key=b"", rate="10/min",
                                            next_ns=_NOW + 2 * _MINUTE))),
    (Why.BUSY, "it is the next, but all 8 slots of the 2 workers that could run it are taken",
     _facts(workers=(_worker(4), _worker(9)))),
    (Why.BUSY, "it is the next, but all 4 slots of the one worker that could run it are taken",
     _facts(workers=(_worker(4), _worker(queues=frozenset({"sync"}))))),
    (Why.NEXT, "nothing is in its way: a worker takes it at any moment",
     _facts(workers=(_worker(4), _worker(3)))),
    (Why.NEXT, "nothing is in its way: a worker takes it at any moment",
     _facts(job=_job(task=""), workers=(_worker(9, tasks=None, slots=0),))),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "facts"), _CASES)
def test_each_state_of_affairs_has_its_reason_and_sentence(
    code: Why, text: str, facts: JobFacts
) -> None:
    reason = why(facts)
    assert (reason.code, reason.text) == (code, text)


def test_every_reason_is_in_the_table() -> None:
    of_readers = {Why.ELSEWHERE, Why.DROPPED}  # a copy's, and a full disk's
    assert {case[0] for case in _CASES} == set(Why) - of_readers


def test_a_limit_is_used_up_by_the_running_jobs_of_its_task_and_key_alone() -> None:
    agenda = Agenda()
    keys = (b"\x01\x01qt#a", b"\x01\x01pt#a", b"\x01\x01qt#b", b"\x01\x01qu#a", b"\x01\x01qt#a")
    for job, key in enumerate(keys, 1):
        agenda.apply_enqueued(job, job * 8, agenda.queues.lane(5, key), 0)
    for job in (1, 2, 3, 4):
        agenda.apply_claimed(job, 10 + job, 1, 7, 1)
    answer = used_up(agenda, 5, Limit(concurrency=2), _NOW)
    assert answer == UsedLimit(task="t", key=b"#a", concurrency=2, running=(1, 2))
    assert used_up(agenda, 5, Limit(concurrency=3), _NOW) is None


def test_waiting_jobs_are_counted_by_what_they_wait_for_but_for_bytes() -> None:
    agenda = Agenda()
    for job, key in enumerate(
        (b"\x01\x01qt", b"\x01\x01qt", b"\x01\x01qu", b"\x01\x00q", b"\x01\x01pt", b"\x01\x01qt#k"),
        1,
    ):
        agenda.apply_enqueued(job, job * 64, agenda.queues.lane(5, key), 0)
    agenda.apply_scheduled(7, 7 * 64, agenda.queues.lane(5, b"\x01\x01qu"), 0, 10**18, False)
    agenda.queues.apply_paused("p")
    q = {("q", "t"): Waiting(ready=3), ("q", "u"): Waiting(ready=1, later=1)}
    assert waiting_jobs(agenda) == {**q, ("p", "t"): Waiting(paused=1)}
    agenda.queues.apply_resumed("p")
    assert waiting_jobs(agenda)["p", "t"] == Waiting(ready=1)


def test_strays_are_grouped_by_task_in_served_queues_and_else_by_queue() -> None:
    ready = {
        ("q", "t"): Waiting(3), ("q", "u"): Waiting(0, 1), ("q", "v"): Waiting(1, 0, 1),
        ("p", "t"): Waiting(4),
    }  # fmt: skip
    serving = Serving(queues=frozenset({"q"}), tasks=frozenset({"t"}))
    assert strays_of(ready, iter([serving])) == Strays({"u": 1, "v": 2}, {"p": 4})
    anything = Serving()
    assert strays_of(ready, [serving, anything]) == Strays({}, {})
    assert strays_of(ready, [Serving(tasks=frozenset({"t"}))]) == Strays({"u": 1, "v": 2}, {})
    assert strays_of(ready, []) == Strays({}, {"q": 6, "p": 4})
    assert strays_of(ready, [], due=True) == Strays({}, {"q": 4, "p": 4})
