"""What a person does with ``taskq top``: which row is chosen, what is typed, what is to be done."""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from taskq.engine import Moment
from taskq.errors import TaskqError
from taskq.values import SECOND_NS, dataclass

if TYPE_CHECKING:
    from taskq.views import JobView
    from taskq_plugins.looks.reading import Failure
    from taskq_plugins.top.seen import Picture

#: What a row stands for: a queue by its name, a job, or failures of one kind.
Row: TypeAlias = "str | JobView | Failure"
Verb = Literal["cancel", "requeue", "run now", "pause", "resume"]

#: By so much the arrows move a moment of the past.
_STEP_NS: Final = 60 * SECOND_NS
_VERBS: Final[dict[str, Verb]] = {"c": "cancel", "r": "requeue", "n": "run now", "p": "pause"}
#: Keys that each screen understands, as its last line tells them.
HELP: Final = "enter open  w why  / filter  t time  q quit"
ACTS_HELP: Final = "c cancel  r requeue  n run now  p pause"


@dataclass(frozen=True, slots=True)
class Act:
    """Something to be done: a verb, and the ids of jobs, or the name of a queue."""

    verb: Verb
    names: tuple[str, ...]

    def __str__(self) -> str:
        what = self.names[0] if len(self.names) == 1 else f"{len(self.names)} jobs"
        return f"{self.verb} {what}"


@dataclass(slots=True)
class Screen:
    """The state of the screen; ``press`` changes it, and nothing else does.

    Attributes:
        read_only: nothing may be changed.
        is_open: until somebody quits.
        chosen: number of the chosen row among those that are shown.
        filter: text that a row must hold.
        opened: id of the job that is shown alone; "" for none.
        wants_why: and why it does not run is asked.
        typed: what is being typed, and for what: "/" or "t"; None while nothing is.
        asked: what is to be done, once a person says yes.
        to_do: what a person has said yes to, or a job that is looked for.
        moment: the past that is shown, and as what it was given.
        said: the last line: what came of it.
    """

    read_only: bool = False
    is_open: bool = True
    chosen: int = 0
    filter: str = ""
    opened: str = ""
    wants_why: bool = False
    typed: str | None = None
    typed_for: str = ""
    asked: Act | None = None
    to_do: list[Act] = field(default_factory=list)
    moment: Moment | None = None
    moment_text: str = ""
    said: str = ""

    def rows(self, picture: Picture) -> list[Row]:
        rows: list[Row] = [queue.queue for queue in picture.queues if self._fits(queue.queue)]
        rows += [job for job, _ in picture.running if self._fits_job(job)]
        rows += [job for job in picture.ended if self._fits_job(job)]
        rows += [
            failure
            for failure in picture.failures
            if self._fits(failure.task, failure.error, failure.message)
        ]
        return rows

    def row(self, picture: Picture) -> Row | None:
        rows = self.rows(picture)
        self.chosen = min(max(self.chosen, 0), max(len(rows) - 1, 0))
        return rows[self.chosen] if rows else None

    def press(self, key: str, picture: Picture) -> None:
        self.said = ""
        if self.typed is not None:
            self._type(key)
        elif self.asked is not None:
            self._answer(key)
        elif key in ("up", "k"):
            self.chosen -= 1
        elif key in ("down", "j"):
            self.chosen += 1
        elif key in ("left", "right") and self.moment is not None:
            self._step(-_STEP_NS if key == "left" else _STEP_NS)
        elif key in _VERBS:
            self._ask(_VERBS[key], picture)
        else:
            self._command(key, picture)

    def _command(self, key: str, picture: Picture) -> None:
        if key == "q":
            self.is_open = False
        elif key in ("/", "t"):
            self.typed, self.typed_for = "", key
        elif key in ("escape", "backspace"):
            if not self.opened:
                self.filter = ""
            self.opened, self.wants_why = "", False
        elif key in ("enter", "w"):
            self._open(self.row(picture), wants_why=key == "w")

    def _open(self, row: Row | None, *, wants_why: bool) -> None:
        if self.opened:
            self.wants_why = self.wants_why or wants_why
        elif isinstance(row, str):
            self.filter, self.chosen = row, 0
        elif row is not None:
            self.opened, self.wants_why = ids_of(row)[0], wants_why
        elif self.filter:  # perhaps the id of a job that waits
            self.opened, self.wants_why = self.filter, wants_why

    def _type(self, key: str) -> None:
        typed = self.typed or ""
        if key == "escape":
            self.typed = None
        elif key == "backspace":
            self.typed = typed[:-1]
        elif key == "enter":
            self.typed = None
            if self.typed_for == "t":
                self._go(typed.strip())
            else:
                self.filter, self.chosen = typed.strip(), 0
        elif len(key) == 1:
            self.typed = typed + key

    def _go(self, text: str) -> None:
        try:
            self.moment = Moment.parse(text, time.time_ns()) if text else None
        except TaskqError as error:
            self.said = str(error)
            return
        self.moment_text = text

    def _step(self, step_ns: int) -> None:
        if self.moment is None or self.moment.time_ns is None:
            self.said = "the arrows move times, and this is an lsn"
            return
        moment_ns = self.moment.time_ns + step_ns
        if moment_ns >= time.time_ns():
            self.moment = None
            return
        self.moment = Moment(time_ns=moment_ns)
        self.moment_text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment_ns / SECOND_NS))

    def _ask(self, verb: Verb, picture: Picture) -> None:
        row = self.row(picture)
        if self.read_only:
            self.said = "nothing is changed here: taskq top runs with --read-only"
        elif self.moment is not None:
            self.said = "the past cannot be changed: t and enter show the present"
        elif verb == "pause":
            queue = row if isinstance(row, str) else getattr(row, "queue", "")
            paused = any(stats.queue == queue and stats.paused for stats in picture.queues)
            if queue:
                self.asked = Act("resume" if paused else "pause", (queue,))
        elif self.opened:
            self.asked = Act(verb, (self.opened,))
        elif row is not None and not isinstance(row, str):
            self.asked = Act(verb, ids_of(row) if verb == "requeue" else ids_of(row)[:1])

    def _answer(self, key: str) -> None:
        if key == "y" and self.asked is not None:
            self.to_do.append(self.asked)
        self.asked = None

    def _fits(self, *texts: str) -> bool:
        return any(self.filter in text for text in texts)

    def _fits_job(self, job: JobView) -> bool:
        return self._fits(job.job_id, job.queue, job.task)


def ids_of(row: JobView | Failure) -> tuple[str, ...]:
    return getattr(row, "jobs", None) or (row.job_id,)  # type: ignore[union-attr]
