"""Notify another service by HTTP of succeeded or dead jobs: signed, and retried like jobs.

`Standard Webhooks <https://www.standardwebhooks.com>`_ defines bodies and headers and has libraries
for receivers: ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature`` (HMAC-SHA256 of id,
time and body). Each message is a job of its own, delivered at least once, through crashes and an
hour without a network, always with the same id. The message is written in one frame with the
success or death. A death in a process without webhooks, such as a program with ``TaskLog`` or a
worker of another app on this log, sends no message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from taskq import DeadLetter, Discard, JobContext, Retry, current_job, errors, retry, values
from taskq.limits import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping

    import httpx

    from taskq import TaskQ

Event = Literal["succeeded", "dead"]

#: Prefix of a digest of the address: messages to one receiver are jobs of one task.
_TASK_PREFIX: Final = "taskq.webhook."
QUEUE_DEFAULT: Final = "webhooks"
#: Time for a receiver to answer.
TIMEOUT_SECONDS: Final = 15.0
#: Bytes of an answer that are read at most.
_BODY_BYTES_MAX: Final = 64 * 1024
#: Eleven tries over about a day.
_POLICY: Final = retry.exponential(attempts=11, base=5, cap=8 * 3600, factor=4, jitter="equal")
#: An older or newer message may be a replay.
TOLERANCE_SECONDS: Final = 300
_DIGITS_MAX: Final = 15
_MARK: Final = "whsec_"
_SECRET_BYTES_MIN: Final = 24
_OK, _GONE, _LATER = range(200, 300), 410, frozenset({429, 503})
#: Longest delay of the next try that a receiver may ask for.
_RETRY_AFTER_MAX: Final = 24 * 3600


class Webhooks:
    """Notifies one receiver of an app's jobs. Create it before workers start.

    ::

        Webhooks(app, "https://example.com/hook", os.environ["HOOK_SECRET"], events=["dead"])

    Args:
        app: the app with the jobs.
        url: target of the messages: an https address, or an address of this machine.
        secret: ``whsec_`` and at least 24 bytes in base64, shared with the receiver.
        events: ends to report.
        tasks: names of the tasks to report; None for all.
        queue: queue of the messages.
        transport: a transport of httpx, for tests.

    Raises:
        UsageError: an argument is wrong; the message names it and the remedy.
    """

    def __init__(
        self,
        app: TaskQ,
        url: str,
        secret: str,
        *,
        events: Iterable[Event] = ("succeeded", "dead"),
        tasks: Collection[str] | None = None,
        queue: str = QUEUE_DEFAULT,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._app, self._url, self._key = app, _checked_url(url), key_of(secret)
        self._events = values.checked_names("events", events)
        unknown = self._events - set(get_args(Event))
        if unknown:
            raise errors.UsageError(f"webhooks report succeeded and dead, not {min(unknown)!r}")
        self._tasks = None if tasks is None else values.checked_names("tasks", tasks)
        self._transport = transport
        #: for each event loop: its number of workers, and their client
        self._lines: dict[asyncio.AbstractEventLoop, _Line] = {}
        digest = hashlib.sha256(url.encode()).hexdigest()[:8]

        @app.task(name=f"{_TASK_PREFIX}{digest}", queue=queue, retry=_POLICY)
        async def post(event: str | DeadLetter, data: dict[str, Any] | None = None) -> None:
            if isinstance(event, str):
                await self._send(event, data or {})
            elif self._is_chosen(event.task):
                await self._send("dead", _data_of(event))

        self._post = post
        app.lifespan(self._line)
        if "succeeded" in self._events:
            app.middleware(self._around)
        if "dead" in self._events:
            app.on_dead(post, tasks=self._tasks)

    async def _send(self, event: str, data: dict[str, Any]) -> None:
        job = current_job()
        body = json.dumps({"type": f"job.{event}", "timestamp": data["ended_at"], "data": data})
        headers = signed(self._key, job.id, int(time.time()), body.encode())
        answer: httpx.Response | None = None
        send = self._client().stream("POST", self._url, content=body, headers=headers)
        try:
            # httpx limits only the time of a single read, and counts a stall of the loop.
            async with Deadline(TIMEOUT_SECONDS), send as answer:
                await _read_to_the_end(answer)
        except TimeoutError:
            if answer is None:
                problem = f"{self._url} did not answer within {TIMEOUT_SECONDS:g} s"
                raise TimeoutError(problem) from None
        if answer.status_code in _OK:
            return
        problem = f"{self._url} answered {answer.status_code} {answer.reason_phrase}".rstrip()
        if answer.status_code == _GONE:
            raise Discard(f"{problem}: it wants no more of these")
        if answer.status_code in _LATER:
            raise Retry(_delay(answer.headers.get("retry-after")), problem)
        raise RuntimeError(problem)

    async def _line(self) -> AsyncIterator[None]:
        try:
            import httpx  # noqa: F401, PLC0415 - now, as each message would fail for a day
        except ImportError as error:
            raise errors.UsageError(f"webhooks need httpx ({error}): pip install httpx") from None
        loop = asyncio.get_running_loop()
        line = self._lines.setdefault(loop, _Line())
        line.workers += 1
        try:
            yield
        finally:
            line.workers -= 1
            if not line.workers:
                del self._lines[loop]
                if line.client is not None:
                    await line.client.aclose()

    def _client(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 - an app that only enqueues need not have it

        line = self._lines[asyncio.get_running_loop()]
        if line.client is None:
            line.client = httpx.AsyncClient(
                timeout=None,  # noqa: S113 - the whole exchange has a limit
                transport=self._transport,
                follow_redirects=False,
            )
        return line.client

    async def _around(self, job: JobContext) -> AsyncIterator[None]:
        yield
        if self._is_chosen(job.task):
            data = _data(job.id, job.task, job.queue, job.attempt, datetime.now(UTC))
            job.enqueue(self._post.call("succeeded", data))

    def _is_chosen(self, task: str) -> bool:
        # Messages about messages would never end.
        is_message = task.startswith(_TASK_PREFIX)
        return not is_message and (self._tasks is None or task in self._tasks)


async def _read_to_the_end(answer: httpx.Response) -> None:
    """Read a body so that its connection can be reused; a long body closes the connection."""
    size = 0
    async for piece in answer.stream:  # type: ignore[union-attr]
        size += len(piece)
        if size > _BODY_BYTES_MAX:
            return


class _Line:
    """HTTP client of the workers of one event loop."""

    def __init__(self) -> None:
        self.workers = 0
        self.client: httpx.AsyncClient | None = None


def key_of(secret: str) -> bytes:
    """Return the key in a secret: ``whsec_`` and at least 24 bytes in base64.

    Raises:
        UsageError: it has another form.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_MARK), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not secret.startswith(_MARK) or len(key) < _SECRET_BYTES_MIN:
        raise errors.UsageError(
            f"a webhook's secret is {_MARK} and at least {_SECRET_BYTES_MIN} random bytes "
            f"in base64: python -c 'import base64, os; "
            f'print("{_MARK}" + base64.b64encode(os.urandom(32)).decode())\''
        )
    return key


def signed(key: bytes, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message that is sent at this time, in seconds since 1970."""
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{_signature(key, message_id, str(seconds), body)}",
    }


def is_genuine(key: bytes, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """For receivers: return whether a message was signed with the key in the last five minutes.

    ::

        if not is_genuine(key_of(secret), request.headers, await request.body(), time.time()):
            return Response(status_code=401)

    Args:
        key: see ``key_of``.
        headers: the headers, with names in lower case.
        body: the unchanged bytes.
        now: seconds since 1970.
    """
    seconds = headers.get("webhook-timestamp", "")
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= _DIGITS_MAX):
        return False
    if abs(now - int(seconds)) > TOLERANCE_SECONDS:
        return False
    wanted = f"v1,{_signature(key, headers.get('webhook-id', ''), seconds, body)}".encode()
    given = headers.get("webhook-signature", "").encode(errors="replace")
    # While a sender changes its secret, it signs with the old and the new one.
    return any(hmac.compare_digest(wanted, signature) for signature in given.split(b" "))


def _signature(key: bytes, message_id: str, seconds: str, body: bytes) -> str:
    content = f"{message_id}.{seconds}.".encode(errors="replace") + body
    return base64.b64encode(hmac.digest(key, content, "sha256")).decode()


def _data(job_id: str, task: str, queue: str, attempt: int, ended_at: datetime) -> dict[str, Any]:
    data = {"job_id": job_id, "task": task, "queue": queue, "attempt": attempt}
    return data | {"ended_at": ended_at.isoformat()}


def _data_of(letter: DeadLetter) -> dict[str, Any]:
    ended_at = datetime.fromtimestamp(letter.settled_ns / 1e9, UTC)
    data = _data(letter.job_id, letter.task, letter.queue, letter.attempt, ended_at)
    return data | {"reason": letter.reason.partition("\n")[0], "cause": letter.cause}


def _delay(text: str | None) -> float | None:
    """Return the receiver's ``Retry-After`` in seconds; None leaves the delay to the policy."""
    if text is None:
        return None
    try:
        wait = float(text) if text.isdecimal() else _until(text)
    except (TypeError, ValueError):
        return None
    return min(max(wait, 0.0), _RETRY_AFTER_MAX)


def _until(date: str) -> float:
    return (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()


def _checked_url(url: str) -> str:
    from urllib.parse import urlsplit  # noqa: PLC0415 - once, at the start

    parts = urlsplit(url)
    is_here = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_here)):
        raise errors.UsageError(
            f"webhooks are posted to an https:// address (http:// on this machine), not {url!r:.80}"
        )
    return url
