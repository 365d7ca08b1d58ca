"""Search for jobs in one line: ``state:dead task:send since:2h some text``."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from taskq import values
from taskq.core import errors, fingerprints, views
from taskq.core.model import STATES, State
from taskq.text import hidden, is_secret, without_secrets

if TYPE_CHECKING:
    from taskq.log.read.reader import LogReader

#: Most jobs read by one search, and by one step: each may have a payload of 1 MiB.
LOOKED_MAX: Final = 1_000
_SLICE: Final = 200
#: Characters of a payload or result that are searched for text.
_BODY_BYTES_MAX: Final = 16_384
#: Largest payload whose fields are searched.
_FIELDS_BYTES_MAX: Final = 262_144
_NAMES: Final = (
    "state", "queue", "task", "key", "priority", "since", "took", "fingerprint",
)  # fmt: skip
#: Prefixes for fields with user-chosen names: arguments, and headers (tags).
_FIELDS: Final = {"arg": "arg", "header": "header", "tag": "header"}
#: A value in quotes may hold spaces.
_WORD: Final = re.compile(r'(?<!\S)"([^"]*)"(?!\S)|([A-Za-z_][^\s":]*:=?"[^"]*"(?!\S)|\S+)')
#: "http://host" and "10:30" are text.
_NAMED: Final = re.compile(r"((?:arg|header|tag)\.[^:\s]+|[A-Za-z_]+):(?!//)(.+)", re.DOTALL)
#: Characters that are copied together with an id from a log line.
_AROUND_IDS: Final = "\"'`()[]<>{}:;,."
_ID: Final = re.compile(r"(?:[0-9a-f]+-)?\d+")


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search for jobs that have all properties and words; of several values any.

    Names and values match by a part, or as a whole after an equals sign.

    Attributes:
        fields: fields of arguments and headers: (kind, path, values).
        hides: whether secret values are hidden from the search.
    """

    states: frozenset[State] | None = None
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    priorities: frozenset[int] = frozenset()
    fingerprints: tuple[str, ...] = ()
    fields: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    since_ns: int = 0
    took_ns: tuple[int, int] | None = None
    words: tuple[str, ...] = ()
    hides: bool = True

    @classmethod
    def parse(cls, text: str, *, hides: bool = True) -> Search:
        """Parse a line; text in quotes is searched for.

        With ``hides`` the search does not see secret values.

        Raises:
            UsageError: a property is unknown, or its value is invalid.

        Example:
            >>> Search.parse("state:dead,ready task:=mail.send arg.to:ada tag.tenant:7 since:2h")
        """
        named: defaultdict[str, list[str]] = defaultdict(list)
        words = []
        for quoted, word in _WORD.findall(text):
            match = _NAMED.fullmatch(word)
            if match is None:
                words.append((quoted or word).casefold())
                continue
            name, value = match[1], re.sub(r'^(=?)"(.*)"$', r"\1\2", match[2])
            if "." not in name and (name := name.lower()) not in _NAMES:
                raise errors.UsageError(
                    f"{name:.60}: is no property of a job: "
                    f"{values.rather(name, _NAMES, 'properties')}, or arg.NAME and header.NAME; "
                    f'to find it as text write "{word:.60}"'
                )
            named[name].append(value)
        since, took = named["since"], named["took"]
        return cls(
            states=frozenset(map(_state, ",".join(named["state"]).split(",")))
            if named["state"]
            else None,
            queues=tuple(named["queue"]),
            tasks=tuple(named["task"]),
            keys=tuple(named["key"]),
            priorities=frozenset(map(_priority, named["priority"])),
            fingerprints=tuple(named["fingerprint"]),
            fields=tuple(
                (_FIELDS[name.partition(".")[0]], name.partition(".")[2], tuple(wanted))
                for name, wanted in named.items()
                if "." in name
            ),
            since_ns=max(time.time_ns() - values.nanoseconds(since[-1], "since"), 1)
            if since
            else 0,
            took_ns=_span(took[-1]) if took else None,
            words=tuple(words),
            hides=hides,
        )

    def only(self, states: frozenset[State]) -> Search | None:
        """Return the search limited to these states; None if no job can match."""
        among = states if self.states is None else self.states & states
        return replace(self, states=among) if among else None

    def counts(self, lanes: Mapping[tuple[str, str], Counter[str]]) -> Counter[str] | None:
        """Return its number of jobs by state, from counts by lane; None if these do not suffice."""
        if replace(self, states=None, queues=(), tasks=(), hides=True) != Search():
            return None
        counts: Counter[str] = Counter()
        for (queue, task), counted in lanes.items():
            if _fits(self.queues, queue) and _fits(self.tasks, task):
                counts.update(counted)
        return counts

    def fits(self, job: views.JobView) -> bool:
        """Return whether a job matches each part of the search."""
        if self.fingerprints:
            fingerprint = fingerprints.failure_of(job.task, "dead", job.reason)[2]
            if fingerprint not in self.fingerprints:
                return False
        key = (job.key or b"").decode(errors="replace")
        if self.hides:  # or a search would reveal a secret letter by letter
            key = hidden(key)
        parts = ((self.queues, job.queue), (self.tasks, job.task), (self.keys, key))
        if (
            not all(_fits(wanted, whole) for wanted, whole in parts)
            or (self.priorities and job.priority not in self.priorities)
            or (self.took_ns is not None and not _took(job, *self.took_ns))
            or (self.fields and not self._fits_fields(job))
        ):
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

    def find(self, reader: LogReader, limit: int, before: int = 0) -> JobPage:
        """Return at most ``limit`` matching jobs, before the job with that lsn unless it is 0.

        A search for text stops after LOOKED_MAX jobs; ``following`` continues from there.
        """
        fitting: list[views.JobView] = []
        looked = 0
        states = None if self.states is None else set(self.states)
        queue, task = _sole(self.queues), _sole(self.tasks)
        # If the log itself finds the jobs, no other job need be read.
        rest = replace(self, states=None, since_ns=0, hides=True)
        rest = replace(rest, queues=() if queue is not None else rest.queues)
        rest = replace(rest, tasks=() if task is not None else rest.tasks)
        is_plain = rest == Search()
        while looked < LOOKED_MAX:
            count = limit + 1 - len(fitting) if is_plain else _SLICE
            jobs = reader.jobs(states, queue, task, count, before=before or values.TIME_NS_MAX)
            for job in jobs:
                if job.enqueued_ns < self.since_ns:
                    return JobPage(jobs=fitting, following=0, looked_at=looked)
                if self.fits(job):
                    if len(fitting) == limit:
                        return JobPage(jobs=fitting, following=fitting[-1].lsn, looked_at=looked)
                    fitting.append(job)
                looked += 1
                before = job.lsn
            if len(jobs) < count:
                return JobPage(jobs=fitting, following=0, looked_at=looked)
        return JobPage(jobs=fitting, following=before, looked_at=looked)

    @staticmethod
    def words_of(text: str) -> list[str]:
        """Return the words of a search in their original form."""
        return [word or f'"{quoted}"' for quoted, word in _WORD.findall(text)]

    @staticmethod
    def without_states(text: str) -> str:
        """Return a search without its states."""
        return " ".join(
            word for word in Search.words_of(text) if not word.casefold().startswith("state:")
        )

    @staticmethod
    def job_named(reader: LogReader, text: str) -> str | None:
        """Return the job's id if a line is only an id: whole, its end, or with copied signs."""
        text = text.strip()
        word = text.strip(_AROUND_IDS).removeprefix("-")
        # A number in quotes is text to search for.
        if not _ID.fullmatch(word) or (word.isdecimal() and text == f'"{word}"'):
            return None
        with contextlib.suppress(errors.TaskqError):
            return f"{reader.tag}-{reader.find_job(word)}"
        return None

    def _fits_fields(self, job: views.JobView) -> bool:
        given: dict[str, Any] = {"header": job.headers}
        if len(job.payload) <= _FIELDS_BYTES_MAX and any(kind == "arg" for kind, *_ in self.fields):
            given["arg"] = job.arguments
        for kind, path, wanted in self.fields:
            text = _field(given.get(kind), path, hides=self.hides)
            if text is None or not _fits(wanted, text):
                return False
        return True


def _fits(wanted: tuple[str, ...], whole: str) -> bool:
    """Return whether any of the values matches; no values match all."""
    return not wanted or any(
        value[1:] == whole if value.startswith("=") else value in whole for value in wanted
    )


def _sole(wanted: tuple[str, ...]) -> str | None:
    """Return the whole name, if the search is for exactly one name."""
    return wanted[0][1:] if len(wanted) == 1 and wanted[0].startswith("=") else None


def _field(value: Any, path: str, *, hides: bool) -> str | None:
    """Return the text of ``order.id`` in a JSON object, or of exactly that name; else None."""
    while isinstance(value, dict):
        if path in value:
            inner = without_secrets(value[path], path) if hides else value[path]
            return inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        name, _, path = path.partition(".")
        value = None if hides and is_secret(name) else value.get(name)
    return None


def _state(value: str) -> State:
    if value not in STATES:
        raise errors.UsageError(
            f"state:{value:.60} is no state: {values.rather(value, STATES, 'states')}"
        )
    return STATES[value]


def _priority(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) == 1):
        raise errors.UsageError(f"priority:{value:.60} is no priority: write one of 0 to 9")
    return int(value)


def _span(value: str) -> tuple[int, int]:
    """Return the shortest and longest time of ``took:`` in ns, such as ``>5s``, ``<1m``, ``5s``."""
    span_ns = values.nanoseconds(value.lstrip("<>=") or value, "took")
    return (0, span_ns) if value.startswith("<") else (span_ns, values.TIME_NS_MAX)


def _took(job: views.JobView, least_ns: int, most_ns: int) -> bool:
    if not job.attempts or not job.attempts[-1].ended_ns:
        return False
    return least_ns <= job.attempts[-1].ended_ns - job.attempts[-1].started_ns <= most_ns


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
        jobs: the matching jobs.
        following: ``before`` for the next page; 0 at the end.
        looked_at: number of jobs read.
    """

    jobs: list[views.JobView]
    following: int
    looked_at: int
