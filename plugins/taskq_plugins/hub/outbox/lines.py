"""What a device asks for and is given, as the line carries it: ``POST /v1/down``.

The question is JSON. The answer is lines of JSON: jobs in the order of their numbers, then what is
to be cancelled, and a last line that counts them and hashes what is before it. Without that line
nothing counts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, Final, NamedTuple
from uuid import UUID

from taskq.engine import Border
from taskq_plugins.hub.wire import as_json

DOWN: Final = "/v1/down"
#: Header of a job on a device: its id in the outbox.
JOB: Final = "hub-job"
JSON_LINES: Final = "application/x-ndjson"
#: Longest a question may wait for its answer.
WAIT_SECONDS_MAX: Final = 50.0
#: Jobs that one question refuses: as many as an answer holds.
JOBS_MAX: Final = 256
#: Of the payloads in an answer, unless one job is larger.
BYTES_MAX: Final = 1024 * 1024
REASON_CHARACTERS_MAX: Final = 500
_TAG: Final = re.compile(r"[0-9a-f]{8}\Z")
_UPLOAD: Final = re.compile(r"hub\.([0-9a-f]{8})@(0|[1-9][0-9]{0,17})\Z")
_NUMBER_MAX: Final = 2**62


class Question(NamedTuple):
    """Ask what is there for a device.

    Attributes:
        session: of the sync before it.
        log_id: of the log that the jobs go to.
        up: where its copy ended when the session did: all before it is settled first.
        after: by the tag of a hub's outbox, the last number that was taken from there.
        waiting: whether anything that was taken is not adopted before ``up``.
        refused: (id, why) of jobs that the device does not take.
        wait_seconds: how long to wait for something.
        bytes_max: of payloads; with less than BYTES_MAX a larger job waits.
    """

    session: int
    log_id: UUID
    up: Border
    after: dict[str, int]
    waiting: bool
    refused: tuple[tuple[str, str], ...] = ()
    wait_seconds: float = 0.0
    bytes_max: int = BYTES_MAX


class Handed(NamedTuple):
    """A job on its way to a device.

    Attributes:
        number: of the record that brought it, which grows when it is requeued.
        id: of the outbox's job; ``key`` is the one that it holds on the device.
        due_ns: a span from now, or a moment if ``due_is_wall``.
        expires_ns: a span from now.
    """

    number: int
    id: str
    key: str
    queue: str
    task: str
    priority: int
    attempts: int
    flags: int
    headers: dict[str, str]
    due_ns: int
    due_is_wall: bool
    expires_ns: int
    payload: bytes


class Given(NamedTuple):
    """What is there.

    Attributes:
        tag: of the outbox.
        end: the last number of these jobs, or ``after`` if there are none.
        cancels: (id, number of the device's own job) of what is to be cancelled there.
    """

    tag: str
    end: int
    jobs: list[Handed]
    cancels: list[tuple[str, int]]


def upload_name(tag: str, end: int) -> str:
    """Return what a device publishes a part as: once, whatever becomes of the line."""
    return f"hub.{tag}@{end}"


def upload_number(name: str) -> tuple[str, int] | None:
    """Return (tag, end) of such a name; None for any other."""
    upload = _UPLOAD.match(name)
    return (upload[1], int(upload[2])) if upload is not None else None


def encode_question(asked: Question) -> bytes:
    """Return the question as JSON."""
    return as_json(asked._asdict())


def decode_question(data: bytes) -> Question:
    """Read a question.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    values = json.loads(data)
    after = {str(tag): int(number) for tag, number in values["after"].items()}
    if not all(_TAG.match(tag) and 0 <= number < _NUMBER_MAX for tag, number in after.items()):
        raise ValueError("no numbers of an outbox")
    refused = tuple(
        (str(job), str(reason)[:REASON_CHARACTERS_MAX]) for job, reason in values["refused"]
    )
    return Question(
        int(values["session"]), UUID(values["log_id"]), Border.from_list(values["up"]), after,
        values["waiting"] is True, refused[:JOBS_MAX],
        min(max(float(values["wait_seconds"]), 0.0), WAIT_SECONDS_MAX),
        int(values["bytes_max"]),
    )  # fmt: skip


def encode_given(given: Given) -> bytes:
    """Return the answer's lines."""
    lines: list[dict[str, Any]] = [
        job._asdict() | {"kind": "enqueue", "payload": base64.b64encode(job.payload).decode()}
        for job in given.jobs
    ]
    lines += ({"kind": "cancel", "id": job, "job": number} for job, number in given.cancels)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    last = {
        "kind": "end", "outbox": given.tag, "end": given.end, "lines": len(lines),
        "sha256": hashlib.sha256(body).hexdigest(),
    }  # fmt: skip
    return body + json.dumps(last).encode() + b"\n"


def decode_given(data: bytes) -> Given:
    """Read an answer.

    Raises:
        ValueError, KeyError, TypeError: it is none, or was cut short.
    """
    start = data.rfind(b"\n", 0, -1) + 1
    body, last = data[:start], json.loads(data[start:])
    lines = [json.loads(line) for line in body.splitlines()]
    is_whole = last["lines"] == len(lines) and last["sha256"] == hashlib.sha256(body).hexdigest()
    if last["kind"] != "end" or not is_whole or not _TAG.match(last["outbox"]):
        raise ValueError("the line that ends it does not fit")
    jobs: list[Handed] = []
    cancels: list[tuple[str, int]] = []
    for line in lines:
        kind = line.pop("kind")
        if kind == "enqueue":
            payload = base64.b64decode(line.pop("payload"), validate=True)
            jobs.append(Handed(**line, payload=payload))
        elif kind == "cancel":
            cancels.append((str(line["id"]), int(line["job"])))
    return Given(last["outbox"], int(last["end"]), jobs, cancels)
