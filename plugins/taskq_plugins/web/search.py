"""One line that says which jobs are wanted: ``state:dead task:send since:2h some text``."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from taskq.engine import failure_of
from taskq.errors import UsageError
from taskq.text import hidden, without_secrets
from taskq.values import TIME_NS_MAX, dataclass, nanoseconds, parse_json, rather
from taskq.views import STATES

if TYPE_CHECKING:
    from taskq import State
    from taskq.engine import LogReader
    from taskq.views import JobView

#: Jobs that one look reads, and at a time: each may hold a payload of 1 MiB.
LOOKED_MAX: Final = 2_000
_SLICE: Final = 200
#: Characters of a payload or result that text is looked for in.
_BODY_BYTES_MAX: Final = 16_384
_NAMES: Final = frozenset({"state", "queue", "task", "since", "fingerprint"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Which jobs: in one of the states, of the queue, of the task, with all of the words."""

    states: frozenset[State] | None = None
    queue: str | None = None
    task: str | None = None
    since_ns: int = 0
    fingerprint: str | None = None
    words: tuple[str, ...] = ()
    hides: bool = True

    @classmethod
    def parse(cls, text: str, *, hides: bool = True) -> Search:
        """Return what a line of words says; what names no property is text to be found.

        With ``hides`` nothing is found by what names call secret.

        Raises:
            UsageError: a state or a span is none.
        """
        named: dict[str, str] = {}
        states, words = set(), []
        for word in text.split():
            name, colon, value = word.partition(":")
            if not colon or not value or name not in _NAMES:
                words.append(word.casefold())
            elif name != "state":
                named[name] = value
            elif value in STATES:
                states.add(STATES[value])
            else:
                raise UsageError(
                    f"state:{value:.60} is no state: {rather(value, STATES, 'states')}"
                )
        since = named.get("since")
        return cls(
            states=frozenset(states) or None,
            queue=named.get("queue"),
            task=named.get("task"),
            since_ns=0 if since is None else max(time.time_ns() - nanoseconds(since, "since"), 1),
            fingerprint=named.get("fingerprint"),
            words=tuple(words),
            hides=hides,
        )

    @property
    def is_plain(self) -> bool:
        """Return whether the log itself finds what fits, and nothing else need be read."""
        return not (self.words or self.fingerprint)

    def fits(self, job: JobView) -> bool:
        """Return whether it failed like that, and the job says the words of itself."""
        if self.fingerprint and failure_of(job.task, "dead", job.reason)[2] != self.fingerprint:
            return False
        if not self.words:
            return True
        key = (job.key or b"").decode(errors="replace")
        texts = [job.job_id, job.task, job.queue, *job.headers]
        bodies = [body for body in (job.payload, job.result) if body]
        if self.hides:  # or one would learn a secret letter by letter from what is found
            texts += [hidden(job.reason), hidden(key), *map(_without_secrets, bodies)]
            texts += [str(without_secrets(value, name)) for name, value in job.headers.items()]
        else:
            texts += [job.reason, key, *job.headers.values()]
            texts += [body[:_BODY_BYTES_MAX].decode(errors="replace") for body in bodies]
        text = "\n".join(texts).casefold()
        return all(word in text for word in self.words)


def _without_secrets(body: bytes) -> str:
    """Return a body as it is looked into; of a long one nothing: its secrets take long to find."""
    if len(body) > _BODY_BYTES_MAX:
        return ""
    try:
        value = without_secrets(parse_json(body))
    except ValueError:
        return hidden(body.decode(errors="replace"))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of jobs, the newest first.

    Attributes:
        jobs: those that fit.
        following: where the next page begins, as ``before``; 0 at the end.
        looked_at: jobs that were read for it.
    """

    jobs: list[JobView]
    following: int
    looked_at: int


def find_jobs(reader: LogReader, search: Search, limit: int, before: int) -> Found:
    """Return jobs that fit, before the one of that lsn unless it is 0; at most ``limit``.

    Where text is looked for it ends after LOOKED_MAX jobs, and ``following`` goes on from there.
    """
    fitting: list[JobView] = []
    looked = 0
    states = None if search.states is None else set(search.states)
    while looked < LOOKED_MAX:
        count = limit + 1 - len(fitting) if search.is_plain else _SLICE
        jobs = reader.jobs(states, search.queue, search.task, count, before=before or TIME_NS_MAX)
        for job in jobs:
            if job.enqueued_ns < search.since_ns:
                return Found(jobs=fitting, following=0, looked_at=looked)
            if search.fits(job):
                if len(fitting) == limit:
                    return Found(jobs=fitting, following=fitting[-1].lsn, looked_at=looked)
                fitting.append(job)
            looked += 1
            before = job.lsn
        if len(jobs) < count:
            return Found(jobs=fitting, following=0, looked_at=looked)
    return Found(jobs=fitting, following=before, looked_at=looked)
