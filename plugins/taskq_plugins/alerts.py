"""Alerts: a condition of a log that begins and ends, sent to people by mail, HTTP or a function.

Every worker of the app watches, and so does ``taskq alerts APP``, which also notices a log without
workers. The state of an alert is in the log and changes by compare-and-set, so one process sends
the beginning, and one the end. If the sender is killed or cannot reach the receiver, another
process sends after ``LEASE_SECONDS``. Each message is sent at least once, and twice only if the
sender was killed just after the receiver took it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import shutil
import smtplib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from typing import Any, Final, Protocol

import anyio
import click
from anyio.abc import TaskStatus

from taskq import TaskQ, engine, errors, hooks, values, views
from taskq.cli import render
from taskq.limits import Deadline
from taskq_plugins.webhooks import _checked_url, key_of, signed

#: Between two looks.
LOOK_SECONDS: Final = 10.0
#: How long one process may take to send, before another sends.
LEASE_SECONDS: Final = 60.0
_SEND_SECONDS: Final = 15.0
#: For a whole send, since a target may be a function that hangs.
_NOTIFY_SECONDS: Final = 30.0
#: Characters of a text, and its bytes as JSON: the log holds the text while the alert lasts.
_TEXT_MAX: Final = 500
_TEXT_BYTES_MAX: Final = 3_000
#: Phases in which a process sends.
_SENDING: Final = ("begins", "ends")
_FAILED: Final = "alerts were not looked at: %s"
_log: Final = logging.getLogger("taskq.alerts")


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A message to people.

    Attributes:
        name: name of the alert.
        text: one sentence; the message of the end repeats the sentence of the beginning.
        is_over: whether the condition no longer holds.
        directory: directory of the log.
        since: when the condition was first seen, in seconds since 1970.
    """

    name: str
    text: str
    is_over: bool
    directory: str
    since: float

    def as_dict(self) -> dict[str, Any]:
        """Return the alert as a JSON document."""
        fields = ("name", "text", "is_over", "directory", "since")
        return {field: getattr(self, field) for field in fields}

    def __str__(self) -> str:
        return f"{'over' if self.is_over else 'alert'} {self.name}: {self.text}"


class Sight(values.NamedTuple):
    """Facts for conditions: counts, live workers, age of each dead letter, free bytes."""

    stats: views.LogStats
    workers: int
    deaths: tuple[float, ...]
    free_bytes: int


#: Sends an alert to people.
Target = Callable[[Alert], object]


class AlertCondition(Protocol):
    """Condition of an alert: a function with these attributes.

    Attributes:
        name: name of the alert, unless ``app.alert`` gets another.
        for_seconds: how long the condition must hold before an alert begins.
    """

    name: str
    for_seconds: float

    def __call__(self, sight: Sight) -> str | bool | None:
        """Return the problem as a sentence, or True; "", False or None without a problem."""


class _When:
    def __init__(self, name: str, holds: Callable[[Sight], str], for_seconds: float = 0.0) -> None:
        self.name, self.for_seconds, self._holds = name, for_seconds, holds

    def __call__(self, sight: Sight) -> str:
        return self._holds(sight)


def no_worker(span: values.Duration = "1m") -> AlertCondition:
    """Hold once no worker has lived for this long; only ``taskq alerts`` can notice it."""
    seconds = values.seconds(span, "no_worker")
    return _When("no worker", lambda sight: "" if sight.workers else "no worker lives", seconds)


def oldest_job(span: values.Duration, *, queue: str | None = None) -> AlertCondition:
    """Hold while a ready job of the queue, or of any queue, has waited for longer."""
    most = values.seconds(span, "oldest_job")

    def holds(sight: Sight) -> str:
        waits = {
            each.queue: each.oldest_ready_seconds or 0.0
            for each in sight.stats.queues
            if queue in (None, each.queue) and not each.paused
        }
        longest = max(waits, key=waits.__getitem__, default="")
        if waits.get(longest, 0.0) <= most:
            return ""
        return f"a job of queue {longest} has waited for {waits[longest]:,.0f} s"

    return _When("oldest job" + (f" of {queue}" if queue else ""), holds)


def dead_letters(count: int, within: values.Duration = "5m") -> AlertCondition:
    """Hold while at least ``count`` jobs died within this time and are still dead."""
    most, seconds = values.whole(count, "dead_letters"), values.seconds(within, "within")
    if most < 1:
        raise errors.UsageError(f"dead_letters is {most}, it must be at least 1")

    def holds(sight: Sight) -> str:
        died = sum(ago <= seconds for ago in sight.deaths)
        return f"{died:,} jobs died within {seconds:g} s" if died >= most else ""

    return _When("dead letters", holds)


def disk_low(free: int | str) -> AlertCondition:
    """Hold while the log's disk has less free space: bytes, or "2GB"."""
    least = values.size_bytes(free, "disk_low")

    def holds(sight: Sight) -> str:
        return f"{sight.free_bytes:,} bytes are free" if sight.free_bytes < least else ""

    return _When("disk low", holds)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Raises a redirect as an error: urllib would follow it without the alert in the body."""

    def redirect_request(self, *_: object) -> None:
        return None


_DIRECT: Final = urllib.request.build_opener(_NoRedirect)


def webhook(url: str, secret: str = "") -> Target:
    """Post alerts as JSON, signed by `Standard Webhooks <https://www.standardwebhooks.com>`_.

    Args:
        url: an https address, or an address of this machine.
        secret: ``whsec_…`` as for ``Webhooks``; alerts are unsigned without a secret.
    """
    url, key = _checked_url(url), key_of(secret) if secret else b""

    def post(alert: Alert) -> None:
        body = json.dumps({"type": "alert", "data": alert.as_dict()}).encode()
        about = f"alert-{urllib.parse.quote(alert.name)}-{alert.since:.0f}-{alert.is_over:d}"
        headers = {"content-type": "application/json", "webhook-id": about}
        if key:
            import time  # noqa: PLC0415 - the receiver's clock is real, whatever the log's is

            headers = signed(key, about, int(time.time()), body)
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - checked above
        try:
            _DIRECT.open(request, timeout=_SEND_SECONDS).close()
        except urllib.error.HTTPError as error:
            error.close()  # its answer is not read
            raise

    return post


def mail(
    to: str,
    *,
    server: str = "localhost:25",
    sender: str = "taskq@localhost",
    login: tuple[str, str] | None = None,
) -> Target:
    """Mail alerts by SMTP.

    Args:
        to: the address, or several addresses with commas between.
        server: HOST:PORT; with a login the connection is encrypted by STARTTLS.
        sender: the address in the From header.
        login: name and password.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise errors.UsageError(f"mail(server={server!r:.60}): write host:port")

    def send(alert: Alert) -> None:
        message = EmailMessage()
        message["To"], message["From"] = to, sender
        message["Subject"] = " ".join(str(alert).split())[:200]
        message.set_content(f"{alert}\n\nlog: {alert.directory}\n")
        with smtplib.SMTP(host, int(port), timeout=_SEND_SECONDS) as line:
            if login is not None:
                line.starttls()
                line.login(*login)
            line.send_message(message)

    return send


class _Rule(values.NamedTuple):
    name: str
    when: AlertCondition
    to: Target


def declare(app: TaskQ, when: AlertCondition, to: Target, name: str | None) -> None:
    """See ``TaskQ.alert``."""
    rules = app.hooks.alerts
    rule = _Rule(str(name or getattr(when, "name", "")), when, to)
    if not (rule.name and all(map(callable, rule[1:]))):
        raise errors.UsageError(
            "app.alert(when=, to=) takes a condition such as alerts.no_worker() and a target such "
            "as alerts.mail(...), each a function; give one of your own name="
        )
    values.check_name("the alert's name", rule.name)
    if rule.name in rules:
        raise errors.UsageError(f"there are two alerts named {rule.name!r}: give one a name=")
    rules[rule.name] = rule
    app.hooks.services["alerts"] = Watch


class Watch:
    """Watches the alerts of an app in one log; a service of its workers."""

    def __init__(self, app: TaskQ, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._app, self._look_seconds = app, look_seconds
        self._rules: dict[str, _Rule] = app.hooks.alerts
        #: rules whose targets are running on threads, which cannot be stopped
        self._busy: set[str] = set()

    async def run(self, store: engine.Store, *, task_status: TaskStatus[None]) -> None:
        """Look every ten seconds, until cancelled."""
        task_status.started()
        while True:
            await anyio.sleep(self._look_seconds)
            try:
                await self.look(store)
            except Exception as error:  # noqa: BLE001 - a failing watch must not end the worker
                _log.warning(_FAILED, values.text_of(error) or type(error).__name__)

    async def look(self, store: engine.Store) -> list[Alert]:
        """Look once, and send alerts that begin or end; return the alerts that this call sent."""
        port = store.port()
        now, deaths, known = await port.alerts()
        sight = Sight(
            await port.stats(),
            len(await hooks.off_loop(store.live_workers)),
            deaths,
            (await hooks.off_loop(shutil.disk_usage, self._app.data_dir)).free,
        )
        sent: list[Alert] = []
        for rule in list(self._rules.values()):
            try:
                text, before = _text(rule, sight), known.get(rule.name, {})
                after = _step(getattr(rule.when, "for_seconds", 0.0), text, before, now)
                if after is None or not await port.set_alert(rule.name, before, after):
                    continue  # another process was faster
                if after.get("phase") in _SENDING:
                    sent += await self._notify(port, rule, after)
                    now, _, known = await port.alerts()  # sending may have taken long
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            except BaseException:  # noqa: BLE001 - the condition may be the user's
                _log.exception("alert %s failed", rule.name)
        return sent

    async def _notify(
        self, port: engine.LoopPort, rule: _Rule, after: dict[str, Any]
    ) -> list[Alert]:
        is_over = after["phase"] == "ends"
        alert = Alert(
            name=rule.name, text=after["text"], is_over=is_over,
            directory=str(self._app.data_dir), since=after["since"],
        )  # fmt: skip
        try:
            async with Deadline(_NOTIFY_SECONDS):
                await self._send(rule, alert)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - the target is user code or a network
            reason = values.text_of(error) or type(error).__name__
            _log.warning("alert %s was not sent, and is again in a minute: %s", rule.name, reason)
            return []
        active = {"phase": "active", "since": alert.since, "text": alert.text}
        await port.set_alert(rule.name, after, {} if is_over else active)
        return [alert]

    async def _send(self, rule: _Rule, alert: Alert) -> None:
        def call() -> object:
            self._busy.add(rule.name)
            try:
                return rule.to(alert)
            finally:
                self._busy.discard(rule.name)

        if rule.name in self._busy:
            raise TimeoutError("its target has not returned from the last time")
        is_async = inspect.iscoroutinefunction(rule.to)
        sent = rule.to(alert) if is_async else await hooks.off_loop(call)
        if isinstance(sent, Awaitable):
            await sent


def _text(rule: _Rule, sight: Sight) -> str:
    """Return the condition's sentence, short enough for the log; "" if it does not hold."""
    sentence: object = rule.when(sight)
    if not sentence:
        return ""
    if not isinstance(sentence, str | bool):
        raise TypeError(
            f"its condition returned a {type(sentence).__name__}: return a sentence or ''"
        )
    text = sentence if isinstance(sentence, str) else rule.name
    text = text[:_TEXT_MAX].encode("utf-8", "replace").decode()
    while len(json.dumps(text)) > _TEXT_BYTES_MAX:
        text = text[: len(text) * 3 // 4]
    return text


def _step(
    for_seconds: float, text: str, state: dict[str, Any], now: float
) -> dict[str, Any] | None:
    """Return an alert's next state, {} once it is over; None if the state stays the same.

    Phases: "pending" for ``for_seconds``, "begins" and "ends" while a process sends, and "active"
    between these two.
    """
    phase, since, until = state.get("phase"), state.get("since", now), now + LEASE_SECONDS
    if phase in _SENDING:
        return None if state["until"] > now else {**state, "until": until}
    if phase == "active":
        return None if text else {**state, "phase": "ends", "until": until}
    if not text:
        return {} if state else None
    if now - since < for_seconds:
        return None if state else {"phase": "pending", "since": now}
    return {"phase": "begins", "since": since, "text": text, "until": until}


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--once", is_flag=True, help="Look once and end, for cron.")
def alerts(target: str, once: bool) -> None:
    """Watch the alerts of an app, besides its workers, and send messages.

    It needs no worker, so it notices that none lives: run it as a service, or with --once from
    cron. However many processes watch, one of them sends.
    """
    from taskq import extras  # noqa: PLC0415 - help must not import the log

    app: TaskQ = extras.workers().load_app(target)
    if not app.hooks.alerts:
        raise errors.UsageError(f"{target} has no alert: declare one with app.alert(when=, to=)")

    async def work() -> None:
        async with app:
            watches = [(log, Watch(log)) for log in app.logs()]
            while True:
                for log, watch in watches:
                    try:
                        sent = await watch.look(log.store())
                    except Exception as error:
                        if once:
                            raise
                        _log.warning(_FAILED, values.text_of(error) or type(error).__name__)
                        continue
                    for alert in sent:
                        render.echo(str(alert))
                if once:
                    return
                await asyncio.sleep(LOOK_SECONDS)

    asyncio.run(work())
