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

#: Header of a job on a device: its id in the outbox.
JOB: Final = "hub-job"
_TAG: Final = re.compile(r"[0-9a-f]{8}\Z")
_UPLOAD: Final = re.compile(r"hub\.([0-9a-f]{8})@(0|[1-9][0-9]{0,17})\Z")


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
