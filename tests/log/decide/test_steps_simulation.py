"""Jobs of many steps, as programs, on a machine that fails at random: what is recorded holds.

Each seed plays compaction, snapshots, signals that race timeouts, cancels, leases that end,
failures, children, a new version of the code, kills and power cuts; tries of steps that fail, the
first of several waits, and jobs that are undone when they die or are cancelled.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from taskq.core.errors import JobCancelled, JobSettled, NotDead, StaleDelivery
from taskq.core.flows import FlowPart
from taskq.core.folds.steps import Form, Wait, pack_waits
from taskq.core.model import LIVE_STATES, SECOND_NS, Extras, State
from taskq.core.records import Cause, Kind
from taskq.log.config import QueuePolicy
from taskq.log.decide.steps import NewSignal, NewStep
from taskq.log.format.flows import Stepped
from taskq.log.read.flows import look_at_ends, look_at_signals, look_at_steps
from taskq.log.read.selection import letters
from taskq.log.requests import Cancel, ClaimRequest, Delivery, EnqueueSpec, Op, Settlement, Trait
from tests.effort import grows, some
from tests.log.simulation import Simulation
from tests.log.world import Process, keeping, meaning

pytestmark = grows
ACTS: Final = 250
JOBS: Final = 4
LONG: Final = EnqueueSpec("long", "long", 5, 0)
CHILD: Final = EnqueueSpec("child", "child", 5, 0)
#: Lines of a program: what runs side by side. Names alone are steps.
OLD: Final = (
    ("first",),
    ("page", "page", "page"),
    ("sleep",),
    ("either", "then"),
    ("go",),
    ("call", "call"),
    ("last",),
)
NEW: Final = (
    ("begin",), ("page", "page", "page"), ("sleep",), ("either",), ("go", "new"), ("call", "call"),
    ("last",),
)  # fmt: skip
FORMS: Final = {
    "sleep": Form.SLEEP, "go": Form.EVENT, "call": Form.CALL, "either": Form.FIRST,
    "undo": Form.UNDO,
}  # fmt: skip
#: They stand beside the step of their title.
BESIDE: Final = frozenset({Form.TRIED, Form.UNDO, Form.UNDOING})
UNDONE: Final = ("undone", 1)
Title = tuple[str, int]


class Over(Exception):
    """The end of an attempt."""


@dataclass
class Told:
    """Answers that somebody had about a job, and effects that were done for it outside."""

    done: dict[Title, Stepped] = field(default_factory=dict)
    effects: Counter[Title] = field(default_factory=Counter)
    in_doubt: Counter[Title] = field(default_factory=Counter)
    result: bytes | None = None
    is_cancelled: bool = False
    is_undone: bool = False


class Ask(NamedTuple):
    """A request that an attempt waits for the answer of."""

    op: Op
    operand: Any


def look(read: Callable[..., object], **about: object) -> Ask:
    return Ask(Op.LOOK, (partial(read, **about), Trait.AGENDA))


class Attempt:
    """A run of a job by a process: a program that asks, and goes on with the answer."""

    def __init__(self, play: Play, process: Process, delivery: Delivery) -> None:
        self.play, self.process, self.delivery = play, process, delivery
        self.told = play.told.setdefault(delivery.job, Told())
        self.lines = NEW if play.is_new else OLD
        self.waits: list[Wait] = []
        self.steps = self.child() if delivery.task == "child" else self.long()
        self.asked: Any = None

    def act(self) -> None:
        try:
            answer = None if self.asked is None else self.asked.result(0)
            request = self.steps.send(answer)
        except (StopIteration, Over, StaleDelivery, JobCancelled):
            self.play.attempts.remove(self)
            return
        self.asked = self.process.send(*request)

    @property
    def is_held(self) -> bool:
        """Return whether the claim holds, as the process knows it when it has seen all."""
        running = self.process.catch_up().need_agenda().running
        return running.get(self.delivery.job, (0,))[0] == self.delivery.token

    def child(self) -> Generator[Ask, Any, None]:
        parent, place = map(int, self.delivery.payload.split(b":"))
        done = self.play.told[parent].done
        calls = [done[title] for title in (("call", 1), ("call", 2)) if title in done]
        # A cut may take an unanswered call, and with it a child that runs already.
        is_known = any(call.first + place == self.delivery.job for call in calls)
        assert is_known or len(calls) < 2, "a child came twice"
        fails = self.play.chance.random() < 0.2
        yield self.settle(Kind.DEAD if fails else Kind.SUCCEEDED, self.delivery.payload)

    def long(self) -> Generator[Ask, Any, None]:
        chance, counts = self.play.chance, Counter[str]()
        done = yield from self.load()
        yield from self.care_for_undoing(done)
        for line in self.lines:
            titles = []
            for name in line:
                counts[name] += 1
                titles.append((name, counts[name]))
            chance.shuffle(titles)
            for title in titles:
                if title not in done or title[0] == "call":
                    yield from self.try_to_do(title, done)
                if chance.random() < 0.05:
                    yield self.settle(Kind.RETRIED, cause=Cause.EXHAUSTED)
                    raise Over
            if self.waits:
                yield self.settle(Kind.RELEASED, pack_waits(self.waits), cause=Cause.WAITS)
                raise Over
        if chance.random() < 0.1:
            yield self.settle(Kind.DEAD, b"no")
            raise Over
        body = json.dumps(sorted(done)).encode()
        (answer,) = yield self.settle(Kind.SUCCEEDED, body)
        if not isinstance(answer, Exception):
            assert self.told.result is None, "it ended twice"
            self.told.result = body

    def load(self) -> Generator[Ask, Any, dict[Title, Stepped]]:
        is_held, known = self.is_held, dict(self.told.done)
        seen = yield look(look_at_steps, job=self.delivery.job)
        steps = [step for step in seen.steps if step.form not in BESIDE]
        done = {(step.name, step.number): step for step in steps}
        forms = {step.form: step for step in reversed(seen.steps)}
        self.may_undo, self.undoing = Form.UNDO in forms, forms.get(Form.UNDOING)
        self.begun = {(wait.name, wait.number): wait for wait in seen.waits}
        self.now_ns = seen.time_ns
        if is_held:
            assert len(done) == len(steps), "a step is there twice"
            assert self.undoing is None or self.may_undo, "what nobody noted is undone"
            for title, step in known.items():
                assert title in done, f"{title} is lost"
                assert done[title]._replace(ended_ns=0) == step, f"{title} is another"
        return done

    def form(self, title: Title) -> Form:
        return FORMS.get(title[0], Form.STEP)

    def try_to_do(self, title: Title, done: dict[Title, Stepped]) -> Generator[Ask, Any, None]:
        form = self.form(title)
        if form is Form.FIRST:
            yield from self.first(title, done)
        elif form is not Form.STEP or not (yield from self.fails(title)):
            yield from self.do(title, done)

    def do(self, title: Title, done: dict[Title, Stepped]) -> Generator[Ask, Any, None]:
        form, name = self.form(title), title[0]
        begun = self.begun.get(title)
        now_ns = self.now_ns
        if form is Form.CALL and title in done:
            yield from self.await_children(done[title])
            return
        new = NewStep(self.delivery, form, *title, b'"%d.%d"' % (self.delivery.token, title[1]))
        if form is Form.STEP:
            assert title not in self.told.done or not self.is_held, f"{title} is done again"
            self.told.effects[title] += 1
            self.told.in_doubt[title] += 1
            new = new._replace(
                body=new.body[:-1] + b"." * self.play.chance.choice((1, 9_000)) + b'"'
            )
        elif form is Form.CALL:
            extras = Extras(flow=FlowPart(parent=self.delivery.job))
            items = tuple((CHILD, b"%d:%d" % (self.delivery.job, at), extras) for at in range(2))
            new = new._replace(items=items)
        elif begun is None or not 0 < begun.until_ns <= now_ns:
            span_ns = self.play.chance.choice((30, 300)) * SECOND_NS
            until_ns = begun.until_ns if begun else now_ns + span_ns
            if form is Form.SLEEP:
                self.waits.append(Wait(form, *title, until_ns))
                return
            if begun is None and self.play.chance.random() < 0.5:
                until_ns = 0
            wait = Wait(form, *title, until_ns)
        elif form is Form.EVENT:
            new = new._replace(form=Form.TIMEOUT)
        step = yield from self.write(new)
        if step is None:
            self.waits.append(wait)
            return
        assert step.form != Form.EVENT or step.body == b'"sent"', "an event without a signal"
        self.told.in_doubt[title] -= form is Form.STEP
        assert self.told.done.setdefault(title, step) == step, f"{title} was told twice"
        done[title] = step
        if name == "call":
            yield from self.await_children(step)

    def fails(self, title: Title) -> Generator[Ask, Any, bool]:
        if self.play.chance.random() < 0.9:
            return False
        yield Ask(Op.STEP, NewStep(self.delivery, Form.TRIED, *title))
        self.play.counts["tries"] += 1
        if self.play.chance.random() < 0.5:
            return False
        self.waits.append(Wait(Form.TRIED, *title, self.now_ns + 30 * SECOND_NS))
        return True

    def first(self, title: Title, done: dict[Title, Stepped]) -> Generator[Ask, Any, None]:
        """Decide for a signal, that stays, or for the end of a time; once."""
        begun = self.begun.get(title)
        until_ns = self.now_ns + 60 * SECOND_NS if begun is None else begun.until_ns
        signals = yield look(look_at_signals, job=self.delivery.job, name=b"go")
        if not signals and until_ns > self.now_ns:
            self.waits += [Wait(Form.SLEEP, *title, until_ns), Wait(Form.EVENT, "go", 9)]
            return
        body = b"0" if signals else b"1"
        step = yield Ask(Op.STEP, NewStep(self.delivery, Form.FIRST, *title, body))
        assert self.told.done.setdefault(title, step) == step, f"{title} was decided twice"
        done[title] = step

    def care_for_undoing(self, done: dict[Title, Stepped]) -> Generator[Ask, Any, None]:
        if self.undoing is not None:
            yield from self.undo(done)
        if self.delivery.job % 3 == 0 and not self.may_undo:
            yield Ask(Op.STEP, NewStep(self.delivery, Form.UNDO, *UNDONE))

    def undo(self, done: dict[Title, Stepped]) -> Generator[Ask, Any, None]:
        assert self.undoing is not None
        if UNDONE not in done:
            self.told.effects[UNDONE] += 1
            self.told.in_doubt[UNDONE] += 1
            step = yield Ask(Op.STEP, NewStep(self.delivery, Form.STEP, *UNDONE, b"1"))
            self.told.done[UNDONE] = step
            self.told.in_doubt[UNDONE] -= 1
        why = json.loads(self.undoing.body)
        (answer,) = yield self.settle(Kind(why["kind"]), b"undone", cause=Cause(why["cause"]))
        if not isinstance(answer, Exception):
            self.told.is_undone = True
            self.play.counts["undone"] += 1
        raise Over

    def write(self, new: NewStep) -> Generator[Ask, Any, Any]:
        step = yield Ask(Op.STEP, new)
        if step is None and new.form is Form.TIMEOUT:  # a signal came before it
            step = yield Ask(Op.STEP, new._replace(form=Form.EVENT))
        return step

    def await_children(self, step: Stepped) -> Generator[Ask, Any, None]:
        is_held = self.is_held
        ends = yield look(look_at_ends, jobs=[step.first, step.first + 1])
        is_known = all(end.state is not State.ABSENT for end in ends)
        assert is_known or not is_held, "a child's end is lost"
        if any(end.state in LIVE_STATES for end in ends):
            self.waits.append(Wait(Form.CALL, step.name, step.number, 0, step.first, step.jobs))

    def settle(self, kind: Kind, body: bytes | None = None, **rest: Any) -> Ask:
        return Ask(Op.SETTLE, [Settlement(kind, self.delivery, body, **rest)])


class Play(Simulation):
    ACTS: ClassVar = {
        "go_on": 450, "claim": 120, "sync": 200, "tend": 100, "signal": 40, "put": 30, "work": 80,
        "pass_time": 50, "appear": 30, "revive": 10, "plan_a_crash": 20, "kill": 10,
        "power_loss": 10, "change": 4, "cancel": 2,
    }  # fmt: skip
    REQUESTS: ClassVar = {"enqueue_many": 5, "pause": 1, "ingest": 1, "tick": 1}
    power = 0.5

    def __init__(self, seed: int) -> None:
        kept = {"long": QueuePolicy(keep_seconds=10**9)}
        super().__init__(seed, config=keeping(keep_seconds=60, queues=kept))
        self.told: dict[int, Told] = {}
        self.attempts: list[Attempt] = []
        self.is_new = False
        self.jobs: list[int] = []
        self.signalled: Counter[int] = Counter()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.act()
        self.end()

    @property
    def some(self) -> Process:
        return self.chance.choice(self.processes)

    def put(self) -> None:
        if len(self.jobs) < JOBS:
            self.jobs.append(self.some.enqueue(b"long", spec=LONG))

    def claim(self) -> None:
        process = self.some
        lease_ns = self.chance.choice((0, 0, 40)) * SECOND_NS
        request = ClaimRequest(2, frozenset(("long", "child")), wait_until_ns=0, lease_ns=lease_ns)
        for delivery in process.ask(Op.CLAIM, request):
            self.attempts.append(Attempt(self, process, delivery))
            self.counts["attempts"] += 1

    def go_on(self) -> None:
        self.attempts = [it for it in self.attempts if it.process in self.processes]
        able = [it for it in self.attempts if it.asked is None or it.asked.done()]
        if able:
            # Mostly a running one: claimed jobs that remain are given back at the end.
            self.chance.choice(able[:2] if self.chance.random() < 0.5 else able).act()

    def signal(self) -> None:
        if self.jobs:
            self.send(self.chance.choice(self.jobs), self.chance.choice(("", "a")))

    def send(self, job: int, once: str) -> None:
        with contextlib.suppress(JobSettled):
            self.signalled[job] += self.some.ask(Op.SIGNAL, NewSignal(job, "go", b'"sent"', once))
            self.counts["signals"] += 1

    def cancel(self) -> None:
        if self.jobs:
            job = self.chance.choice(self.jobs)
            if self.some.ask(Op.CANCEL, job) in (Cancel.WITHDRAWN, Cancel.ASKED):
                self.told.setdefault(job, Told()).is_cancelled = True

    def change(self) -> None:
        self.is_new = True

    def revive(self) -> None:
        process = self.some
        agenda = process.catch_up().need_agenda()
        dead = [row[0] for row in agenda.dead.rows(0, 99) if row[0] in self.jobs]
        with contextlib.suppress(NotDead):
            process.ask(Op.REQUEUE, letters(process.committer.sight, dead).items)

    # -- what must be true ------------------------------------------------------------------------

    def check(self) -> None:
        """An attempt reads the recorded steps when it begins."""

    def end(self) -> None:
        """Let nothing fail any more: every job comes to its end, and to the right one."""
        self._heal()
        self.power_loss()
        for job in self.jobs:
            if not self.signalled[job]:
                self.safely(partial(self.send, job, ""))
        self.acts = {"go_on": 3, "claim": 1, "sync": 1, "tend": 1, "pass_time": 1, "revive": 1}
        for number in range(4_000):
            if not number % 40 and all(self.is_over(job) for job in self.jobs):
                break
            self.act()
        for job in self.jobs:
            known = self.told.setdefault(job, Told())
            assert self.is_over(job), f"job {job} does not come to its end: {self.world.view(job)}"
            for title, count in known.effects.items():
                assert count <= 1 + known.in_doubt[title], f"{title} was done {count} times"
            view = self.world.job(job)
            if known.result is not None:
                assert view.result == known.result
            self.counts[view.state.name] += 1
        process = self.world.process()
        now_ns = self.world.clock.wall_ns()
        seen, folded = process.catch_up(), self.world.fold()
        assert meaning(folded, now_ns)["steps"] == meaning(seen, now_ns)["steps"]
        files = process.journal.files
        self.counts["segments gone"] += len(files.numbered()) - len(files.lsns)

    def is_over(self, job: int) -> bool:
        known = self.told.get(job, Told())
        if known.result is not None or known.is_undone:
            return True
        view = self.world.view(job)
        assert view is not None, f"job {job} is lost"
        return view.state in (State.SUCCEEDED, State.CANCELLED)


def test_recorded_steps_survive_crashes_retries_and_compaction() -> None:
    counts: Counter[str] = Counter()
    for seed in range(some(1, 200)):
        history = Play(seed)
        try:
            history.run(ACTS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts += history.counts
    assert counts["SUCCEEDED"]
    assert counts["segments gone"]
