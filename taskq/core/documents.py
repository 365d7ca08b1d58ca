"""Views as documents for programs: what ``as_dict()`` gives, and ``--json`` prints."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from taskq.core.model import SECOND_NS, TIME_NS_MAX
from taskq.core.parsing import parse_json

if TYPE_CHECKING:
    from taskq.core.model import AttemptView, JobView


def moment(moment_ns: int) -> str | None:
    """A moment in ISO 8601, UTC, to the microsecond; None for never."""
    if not 0 < moment_ns < TIME_NS_MAX:
        return None
    seconds, rest = divmod(moment_ns, SECOND_NS)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000).isoformat()


def owner(number: int) -> str:
    """An owner as its files are named. Text, since it may exceed what JSON readers keep exact."""
    return f"{number:016x}"


def body_document(body: bytes | None) -> dict[str, Any] | None:
    """A payload or result: ``encoding`` says whether ``data`` is JSON, text or base64."""
    if body is None:
        return None
    try:
        return {"encoding": "json", "data": parse_json(body)}
    except ValueError:
        pass
    try:
        return {"encoding": "text", "data": body.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(body).decode()}


def job_head(job: JobView) -> dict[str, Any]:
    """One job's facts without its bodies and attempts: an entry of ``ls --json``."""
    return {
        "id": job.job_id,
        "state": str(job.state),
        "queue": job.queue,
        "task": job.task or None,
        "priority": job.priority,
        "attempt": job.attempt,
        "attempts_max": job.attempts_max or None,
        "enqueued_at": moment(job.enqueued_ns),
        "due_at": moment(job.due_ns),
        "expires_at": moment(job.expires_ns),
        "settled_at": moment(job.settled_ns),
        "key": None if job.key is None else job.key.decode(errors="backslashreplace"),
        "headers": job.headers,
        "reason": job.reason or None,
    }


def job_document(job: JobView) -> dict[str, Any]:
    """All that a view says of a job."""
    return {
        **job_head(job),
        "payload": body_document(job.payload),
        "result": body_document(job.result),
        "problem": job.problem or None,
        "attempts": [attempt.as_dict() for attempt in job.attempts],
    }


def attempt_document(attempt: AttemptView) -> dict[str, Any]:
    """One delivery of a job."""
    return {
        "number": attempt.number,
        "owner": owner(attempt.owner),
        "started_at": moment(attempt.started_ns),
        "ended_at": moment(attempt.ended_ns),
        "outcome": attempt.outcome or None,
        "reason": attempt.reason or None,
        "error": attempt.error or None,
        "message": attempt.message or None,
        "fingerprint": attempt.fingerprint or None,
    }


def process_document(attempt: AttemptView) -> dict[str, str | int | None]:
    """The process that made an attempt, where somebody asked who that was."""
    return {
        "pid": attempt.pid or None,
        "worker": attempt.worker or None,
        "host": attempt.host or None,
    }
