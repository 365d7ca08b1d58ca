"""How a log stands, in words: one sentence for a worried person, and what else there is to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from taskq.core.durations import spoken
from taskq.core.model import SECOND_NS
from taskq.core.values import NamedTuple, dataclass
from taskq.core.views import OwnerView, QueueStats, Waiting
from taskq.core.why import Strays, strays_of, waiting_in

#: "bad": jobs wait in vain, or more; "slow": they wait for something that passes or was wished.
Level: TypeAlias = Literal["bad", "slow", "well"]

#: Ready jobs that wait for longer are worth a word.
_LONG_SECONDS: Final = 300.0
_NAMED_MAX: Final = 5


class Remark(NamedTuple):
    """Say one thing about a log."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Tell how a log stands.

    Attributes:
        remarks: the worst first; never empty.
        strays: the waiting jobs that no worker would take.
        workers: live processes that claim jobs.
    """

    remarks: tuple[Remark, ...]
    strays: Strays
    workers: int

    @property
    def level(self) -> Level:
        """Return how bad the worst is."""
        return self.remarks[0].level

    @property
    def text(self) -> str:
        """Return the worst in one sentence."""
        return self.remarks[0].text


def standing(
    queues: Iterable[QueueStats],
    owners: Iterable[OwnerView],
    waiting: Mapping[tuple[str, str], Waiting],
    waits: Mapping[str, int],
    *,
    problems: Iterable[str] = (),
    stopped: frozenset[int] = frozenset(),
) -> Standing:
    """Return how a log stands, from plain facts.

    Args:
        queues: the counts of each.
        owners: processes that have the log open, and dead ones that hold jobs.
        waiting: the jobs of each (queue, task) that wait, but for jobs put as bytes.
        waits: scheduled jobs by what they wait for, in words, but for those that wait for a time.
        problems: what is wrong with the log itself, as sentences.
        stopped: ids of processes that a signal has stopped.
    """
    queues, owners = tuple(queues), tuple(owners)
    alive = [owner for owner in owners if owner.alive]
    # A program that claims by itself serves no queue by name.
    workers = [owner for owner in alive if owner.serves or owner.running]
    awake = [owner for owner in workers if owner.pid not in stopped]
    lost = sum(owner.running for owner in owners if not owner.alive)
    strays = Strays({}, {})
    remarks = [Remark("bad", text) for text in problems]
    remarks += [
        Remark("bad", f"Process {owner.pid} is stopped by a signal{_holding(owner.running)}: let "
               f"it go on with kill -CONT {owner.pid}")
        for owner in workers if owner.pid in stopped
    ]  # fmt: skip
    remarks += [
        Remark("bad", f"Worker {owner.pid} stands still: {hold.text}")
        for owner in awake for serving in owner.serves for hold in serving.holds if hold.is_stuck
    ]  # fmt: skip
    if not awake:
        remarks += _unworked(queues, sum(each.ready for each in waiting.values()), lost, waits)
    else:
        servings = [serving for owner in awake for serving in owner.serves]
        if servings:
            strays = strays_of(waiting, servings)
            remarks += _astray(strays, strays_of(waiting, servings, due=True))
        if lost:
            remarks.append(
                Remark("slow", f"{_jobs(lost, 'was', 'were')} running when their process died: "
                       f"a worker takes them back")
            )  # fmt: skip
    remarks += _paused(queues)
    if awake:
        remarks.append(_worked(queues, awake))
    return Standing(remarks=tuple(remarks), strays=strays, workers=len(awake))


def past_standing(queues: Iterable[QueueStats]) -> Standing:
    """Return how a log stood at a moment: which processes there were then nobody wrote down."""
    queues = tuple(queues)
    running, ready = (sum(getattr(q, name) for q in queues) for name in ("running", "ready"))
    text = f"{_jobs(running, 'was', 'were')} running, {ready:,} waited"
    return Standing(remarks=(Remark("well", text),), strays=Strays({}, {}), workers=0)


def copied_standing(queues: Iterable[QueueStats], copy_of: str) -> Standing:
    """Return how a log stands by a hub's copy: which processes run is known on the device alone."""
    queues = tuple(queues)
    running = sum(queue.running for queue in queues)
    parts = [f"{_jobs(running, 'runs', 'run')}" if running else "", waiting_in(queues).told()]
    text = f"{_sentence(copy_of)}: {', '.join(filter(None, parts)) or 'no job waits'}"
    remarks = (Remark("well", text), *_paused(queues))
    return Standing(remarks=remarks, strays=Strays({}, {}), workers=0)


def _unworked(
    queues: tuple[QueueStats, ...], ready: int, lost: int, waits: Mapping[str, int]
) -> Iterator[Remark]:
    ended = f"{lost:,} {'was' if lost == 1 else 'were'} running when theirs died" if lost else ""
    waiting = _jobs(ready, "waits", "wait") if ready else ""
    if ready or lost:
        yield Remark("bad", f"No worker runs: {', '.join(filter(None, (waiting, ended)))}")
        return
    plain, paused, later = waiting_in(queues)
    if plain:
        yield Remark("slow", f"{_jobs(plain, 'waits', 'wait')} for a program that claims them")
    elif paused or later:
        parts = sorted(waits.items(), key=lambda part: (-part[1], part[0]))[:_NAMED_MAX]
        texts = [f"{_jobs(count, 'waits', 'wait')} for {what}" for what, count in parts]
        later -= sum(waits.values())
        texts += [f"{_jobs(paused, 'waits', 'wait')} in a paused queue"] if paused else []
        texts += [f"{_jobs(later, 'is', 'are')} due later"] if later else []
        yield Remark("slow", f"No worker runs: {', '.join(texts)}")
    else:
        yield Remark("well", "No worker runs, and no job waits")


def _astray(strays: Strays, due: Strays) -> Iterator[Remark]:
    """Yield remarks on jobs that no worker takes; a queue needs one once a job is due."""
    if strays.by_task:
        yield from (Remark("bad", _sentence(text)) for text in Strays(strays.by_task, {}).told())
    if strays.by_queue:
        level: Level = "bad" if due.by_queue else "slow"
        yield from (Remark(level, _sentence(text)) for text in Strays({}, strays.by_queue).told())


def _paused(queues: tuple[QueueStats, ...]) -> Iterator[Remark]:
    paused = sorted((q for q in queues if q.paused), key=lambda q: -q.ready)
    for queue in paused[:_NAMED_MAX]:
        wait = f": {_jobs(queue.ready, 'waits', 'wait')}" if queue.ready else ""
        yield Remark("slow", f"Queue {queue.queue} is paused{wait}")


def _worked(queues: tuple[QueueStats, ...], workers: list[OwnerView]) -> Remark:
    waiting = waiting_in(queues)
    running = sum(owner.running for owner in workers)
    count = len(workers)
    text = f"{count:,} worker{' runs' if count == 1 else 's run'} "
    text += _jobs(running) if running else "no job just now"
    ages = [q.oldest_ready_seconds or 0.0 for q in queues if not q.paused]
    oldest = max(ages, default=0.0)
    text += f", {waiting.told() or 'none waits'}"
    if oldest < _LONG_SECONDS:
        return Remark("well", text)
    return Remark("slow", f"{text}, the oldest for {spoken(int(oldest * SECOND_NS))}")


def _holding(running: int) -> str:
    return f" with {_jobs(running)}" if running else ""


def _jobs(count: int, single: str = "", several: str = "") -> str:
    return f"1 job {single}".rstrip() if count == 1 else f"{count:,} jobs {several}".rstrip()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
