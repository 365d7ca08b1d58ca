"""Jobs that wait in vain are counted by cause, and reported in a sentence."""

from __future__ import annotations

from taskq.core.folds.agenda import Agenda
from taskq.core.views import Serving, Waiting
from taskq.core.why import Strays, strays_of, waiting_jobs


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


def test_what_nobody_takes_is_told_by_task_where_its_queue_is_served_and_else_by_queue() -> None:
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


def test_a_sentence_names_the_most_of_five_and_counts_the_rest() -> None:
    assert Strays({}, {}).told() == []
    (first,) = Strays({"mail.send": 1}, {}).told()
    assert first.startswith("1 job waits that no worker knows: mail.send (1); start one")
    (many,) = Strays({f"t{number}": number for number in range(1, 8)}, {}).told()
    assert (
        "28 jobs wait that no worker knows: t7 (7), t6 (6), t5 (5), t4 (4), t3 (3) and 2 more;"
        in many
    )
    (five,) = Strays({f"t{number}": 1_000 for number in range(5)}, {}).told()
    assert "t0 (1,000), t1 (1,000), t2 (1,000), t3 (1,000), t4 (1,000);" in five
    (queues,) = Strays({}, {"b": 2, "a": 1}).told()
    assert queues.startswith("3 jobs wait in a queue that no worker serves: b (2), a (1); start")
    assert queues.endswith("-Q a,b, or without -Q")
    assert len(Strays({"t": 1}, {"q": 1}).told()) == 2
