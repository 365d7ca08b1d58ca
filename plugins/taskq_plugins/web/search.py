"""Search for jobs in one line: ``state:dead task:send since:2h some text``."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from taskq import State, engine, errors, values, views
from taskq.text import hidden, without_secrets

#: Jobs that one look reads, and at a time: each may hold a payload of 1 MiB.
LOOKED_MAX: Final = 1_000
_SLICE: Final = 200
#: Characters of a payload or result that text is looked for in.
_BODY_BYTES_MAX: Final = 16_384
_NAMES: Final = (
    "state", "queue", "task", "key", "priority", "since", "took", "fingerprint",
)  # fmt: skip
_WORD: Final = re.compile(r'(?<!\S)"([^"]*)"(?!\S)|(\S+)')
#: "http://host" and "10:30" are text.
_NAMED: Final = re.compile(r"([A-Za-z_]+):(?!//)(.+)", re.DOTALL)
#: Characters copied along with an id from a log line.
_AROUND_IDS: Final = "\"'`()[]<>{}:;,."
_ID: Final = re.compile(r"(?:[0-9a-f]+-)?\d+")


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search for jobs with all of the properties and words.

    Queues, tasks and keys match by a part of the name; ``exact_queue`` and ``exact_task``, written
    with an equals sign, match the whole name.
    """

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    exact_queue: str | None = None
    exact_task: str | None = None
    key: str | None = None
    priority: int | None = None
    since_ns: int = 0
    took_ns: tuple[int, int] | None = None
    fingerprint: str | None = None
    words: tuple[str, ...] = ()
    hides: bool = True

    @classmethod
    def parse(cls, text: str, *, hides: bool = True) -> Search:
        """Parse a line; text in quotes is searched for.

        With ``hides`` the search does not see secret values.

        Raises:
            UsageError: a property is unknown, or its value is invalid.
        """
        named: dict[str, str] = {}
        states, words = set(), []
        for quoted, word in _WORD.findall(text):
            match = _NAMED.fullmatch(word)
            if match is None:
                words.append((quoted or word).casefold())
                continue
            name, value = match[1].lower(), match[2]
            if name not in _NAMES:
                raise errors.UsageError(
                    f"{name:.60}: is no property of a job: "
                    f"{values.rather(name, _NAMES, 'properties')}; to find it as text write "
                    f'"{word:.60}"'
                )
            if name == "state":
                states.add(_state(value))
            else:
                named[name] = value
        since, took = named.get("since"), named.get("took")
        return cls(
            states=frozenset(states) or None,
            queue=_part(named.get("queue")),
            task=_part(named.get("task")),
            exact_queue=_whole(named.get("queue")),
            exact_task=_whole(named.get("task")),
            key=named.get("key"),
            priority=None if "priority" not in named else _priority(named["priority"]),
            since_ns=0
            if since is None
            else max(time.time_ns() - values.nanoseconds(since, "since"), 1),
            took_ns=None if took is None else _span(took),
            fingerprint=named.get("fingerprint"),
            words=tuple(words),
            hides=hides,
        )

    def only(self, states: frozenset[State]) -> Search | None:
        """Return the same among these states alone; None if nothing can fit."""
        among = states if self.states is None else self.states & states
        return replace(self, states=among) if among else None

    def counts(self, lanes: Mapping[tuple[str, str], Counter[str]]) -> Counter[str] | None:
        """Return how many jobs of its queues and tasks are in each state; None if it asks more."""
        bare = replace(
            self, states=None, queue=None, task=None, exact_queue=None, exact_task=None, hides=True
        )
        if bare != Search():
            return None
        counts: Counter[str] = Counter()
        for (queue, task), counted in lanes.items():
            parts = ((self.queue, queue), (self.task, task))
            wholes = ((self.exact_queue, queue), (self.exact_task, task))
            if all(part is None or part in name for part, name in parts) and all(
                whole is None or whole == name for whole, name in wholes
            ):
                counts.update(counted)
        return counts

    def fits(self, job: views.JobView) -> bool:
        if (
            self.fingerprint
            and engine.failure_of(job.task, "dead", job.reason)[2] != self.fingerprint
        ):
            return False
        key = (job.key or b"").decode(errors="replace")
        if self.hides:  # or a search would reveal a secret letter by letter
            key = hidden(key)
        parts = ((self.queue, job.queue), (self.task, job.task), (self.key, key))
        if any(part is not None and part not in whole for part, whole in parts):
            return False
        if self.priority not in (None, job.priority):
            return False
        if self.took_ns is not None and not _took(job, *self.took_ns):
            return False
        if not self.words:
            return True
        texts = [job.job_id, job.task, job.queue, *job.headers]
        bodies = [body for body in (job.payload, job.result) if body]
        if self.hides:
            texts += [hidden(job.reason), key, *map(_without_secrets, bodies)]
            texts += [str(without_secrets(value, name)) for name, value in job.headers.items()]
        else:
            texts += [job.reason, key, *job.headers.values()]
            texts += [body[:_BODY_BYTES_MAX].decode(errors="replace") for body in bodies]
        text = "\n".join(texts).casefold()
        return all(word in text for word in self.words)


def _part(value: str | None) -> str | None:
    return None if value is None or value.startswith("=") else value


def _whole(value: str | None) -> str | None:
    return value[1:] if value is not None and value.startswith("=") else None


def _state(value: str) -> State:
    if value not in views.STATES:
        raise errors.UsageError(
            f"state:{value:.60} is no state: {values.rather(value, views.STATES, 'states')}"
        )
    return views.STATES[value]


def _priority(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) == 1):
        raise errors.UsageError(f"priority:{value:.60} is no priority: write one of 0 to 9")
    return int(value)


def _span(value: str) -> tuple[int, int]:
    """Return the shortest and longest time in ns that ``took:`` names: ``>5s``, ``<1m``, ``5s``."""
    span_ns = values.nanoseconds(value.lstrip("<>=") or value, "took")
    return (0, span_ns) if value.startswith("<") else (span_ns, values.TIME_NS_MAX)


def _took(job: views.JobView, least_ns: int, most_ns: int) -> bool:
    if not job.attempts or not job.attempts[-1].ended_ns:
        return False
    return least_ns <= job.attempts[-1].ended_ns - job.attempts[-1].started_ns <= most_ns


def without_states(text: str) -> str:
    return " ".join(
        word or f'"{quoted}"'
        for quoted, word in _WORD.findall(text)
        if not word.casefold().startswith("state:")
    )


def job_named(reader: engine.LogReader, text: str) -> str | None:
    """Return the id of the one job that a line names, alone: whole, its end, or as copied."""
    text = text.strip()
    word = text.strip(_AROUND_IDS).removeprefix("-")
    # A number in quotes is text to be found, as any other.
    if not _ID.fullmatch(word) or (word.isdecimal() and text == f'"{word}"'):
        return None
    with contextlib.suppress(errors.TaskqError):
        return f"{reader.tag}-{reader.find_job(word)}"
    return None


def _without_secrets(body: bytes) -> str:
    if len(body) > _BODY_BYTES_MAX:
        return ""
    try:
        value = without_secrets(values.parse_json(body))
    except ValueError:
        return hidden(body.decode(errors="replace"))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@values.dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A page of jobs, the newest first.

    Attributes:
        jobs: with all of the properties.
        following: ``before`` of the next page; 0 at the end.
        looked_at: number of jobs read.
    """

    jobs: list[views.JobView]
    following: int
    looked_at: int


def find_jobs(reader: engine.LogReader, search: Search, limit: int, before: int) -> JobPage:
    """Return jobs that fit, before the one of that lsn unless it is 0; at most ``limit``.

    Where text is looked for it ends after LOOKED_MAX jobs, and ``following`` goes on from there.
    """
    fitting: list[views.JobView] = []
    looked = 0
    states = None if search.states is None else set(search.states)
    queue, task = search.exact_queue, search.exact_task
    # Then the log itself finds what fits, and nothing else need be read.
    rest = replace(search, states=None, exact_queue=None, exact_task=None, since_ns=0, hides=True)
    is_plain = rest == Search()
    while looked < LOOKED_MAX:
        count = limit + 1 - len(fitting) if is_plain else _SLICE
        jobs = reader.jobs(states, queue, task, count, before=before or values.TIME_NS_MAX)
        for job in jobs:
            if job.enqueued_ns < search.since_ns:
                return JobPage(jobs=fitting, following=0, looked_at=looked)
            if search.fits(job):
                if len(fitting) == limit:
                    return JobPage(jobs=fitting, following=fitting[-1].lsn, looked_at=looked)
                fitting.append(job)
            looked += 1
            before = job.lsn
        if len(jobs) < count:
            return JobPage(jobs=fitting, following=0, looked_at=looked)
    return JobPage(jobs=fitting, following=before, looked_at=looked)
