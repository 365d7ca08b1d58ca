"""Alerts are sent once when they begin and once when they are over, by any watcher."""

import asyncio
import dataclasses
import json
import smtplib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock
from urllib.error import HTTPError

import pytest
from anyio import TASK_STATUS_IGNORED

from taskq import Discard, TaskQ
from taskq.core.errors import UsageError
from taskq.testing.sandbox import FakeClock, use_clock
from taskq_plugins import alerts
from taskq_plugins.alerts import LEASE_SECONDS, Alert, Sight, Watch
from taskq_plugins.webhooks import is_genuine, key_of
from tests.cli.helpers import taskq

SECRET: Final = "whsec_" + "a" * 32


class Post:
    """An app with one alert and several watchers, on a log whose clock stands still."""

    def __init__(self, path: Path, when: Any, to: Any = None, name: str | None = None) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.app = TaskQ(path, upkeep=False)
        use_clock(self.app, self.clock)
        self.told: list[tuple[bool, str]] = []
        self.app.alert(when=when, to=to or self.hear, name=name)
        self.watches = [Watch(self.app), Watch(self.app)]

        @self.app.task(name="work", queue="q")
        def work(fails: bool) -> None:
            if fails:
                raise Discard("no")

        self.work = work

    def hear(self, alert: Alert) -> None:
        self.told.append((alert.is_over, alert.name))

    async def look(self, seconds: float = 0) -> list[tuple[bool, str]]:
        """Let all watchers look at once; return the messages that they sent."""
        self.clock.advance(seconds)
        self.told.clear()
        await asyncio.gather(*(watch.look(self.app.store()) for watch in self.watches))
        return list(self.told)


async def _dead(post: Post) -> Callable[[], Any]:
    jobs = await post.work.enqueue_many([(True,)] * 3)
    await post.app.worker(burst=True).run()
    return lambda: post.app.dead.purge_many([job.id for job in jobs])


async def _old(post: Post) -> Callable[[], Any]:
    await post.work.enqueue(False)
    post.clock.advance(700)
    return lambda: post.app.worker(burst=True).run()


async def _workerless(post: Post) -> Callable[[], Any]:
    assert await post.look() == [], "it must hold for a minute"
    post.clock.advance(61)
    worker = post.app.worker()

    async def start() -> None:
        await worker.start()
        post.stop = worker.stop  # type: ignore[attr-defined]

    return start


async def _full(post: Post) -> Callable[[], Any]:
    async def freed() -> None:
        post.app.hooks.alerts["disk low"] = post.app.hooks.alerts["disk low"]._replace(
            when=alerts.disk_low(1)
        )

    return freed


KINDS: Final[dict[str, tuple[Callable[[], Any], Callable[[Post], Any]]]] = {
    "dead letters": (lambda: alerts.dead_letters(3, within="5m"), _dead),
    "oldest job": (lambda: alerts.oldest_job("10m"), _old),
    "no worker": (lambda: alerts.no_worker("1m"), _workerless),
    "disk low": (lambda: alerts.disk_low(2**60), _full),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_alert_is_sent_at_its_start_and_end(tmp_path: Path, kind: str) -> None:
    when, begin = KINDS[kind]
    post = Post(tmp_path, when())
    async with post.app:
        if kind != "no worker":
            assert await post.look() == [(False, kind)] * (kind == "disk low")
        end = await begin(post)
        if kind != "disk low":
            assert await post.look() == [(False, kind)]
        assert await post.look(90) == []
        standing = await post.app._read(lambda reader: reader.standing())
        assert any(text.startswith(f"Alert {kind}: ") for _, text in standing.remarks)
        await end()
        assert await post.look() == [(True, kind)]
        assert await post.look(90) == []
        assert await post.app.controls() == {}
        if kind == "no worker":
            await post.stop()  # type: ignore[attr-defined]


async def test_a_burst_that_is_long_ago_is_over(tmp_path: Path) -> None:
    post = Post(tmp_path, alerts.dead_letters(3, within="5m"))
    async with post.app:
        await _dead(post)
        assert await post.look() == [(False, "dead letters")]
        assert await post.look(301) == [(True, "dead letters")]


async def test_a_condition_shorter_than_its_time_sends_no_alert(tmp_path: Path) -> None:
    post = Post(tmp_path, alerts.no_worker("1m"))
    async with post.app:
        assert await post.look() == []
        async with post.app.worker():
            assert await post.look(61) == []
        assert await post.look(1) == []
        assert await post.look(59) == []
        assert await post.look(1) == [(False, "no worker")]


@pytest.mark.parametrize("over", [False, True])
async def test_another_watch_follows_a_killed_or_failed_sender(tmp_path: Path, over: bool) -> None:
    wrong, fails = ["bad"], [False]

    async def tell(alert: Alert) -> None:
        if fails[0]:
            raise OSError("the mail server is away")
        post.hear(alert)

    post = Post(tmp_path, lambda _: wrong[0], tell, "mine")
    async with post.app:
        if over:
            assert await post.look() == [(False, "mine")]
            wrong[0] = ""
        fails[0] = True
        assert await post.look() == []
        fails[0] = False
        assert await post.look(LEASE_SECONDS - 1) == [], "its teller may still be at it"
        assert await post.look(1) == [(over, "mine")]
        assert await post.look(90) == []


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), BaseException("no")])
async def test_a_failing_condition_does_not_stop_other_alerts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def broken(_: Sight) -> str:
        raise error

    post = Post(tmp_path, broken, name="broken")
    post.app.alert(when=lambda _: "bad", to=post.hear, name="good")
    async with post.app:
        assert await post.look() == [(False, "good")]
    assert "alert broken failed" in caplog.text


@pytest.mark.parametrize(("said", "text"), [
    (None, None), (False, None), ("", None), (7, None), (b"bad", None), (True, "mine"),
    ("bad", "bad"), ("\ud800", "?"), ("\x00" * 900, "\x00" * 375), ("𝄞" * 900, "𝄞" * 210),
])  # fmt: skip
async def test_a_condition_returns_a_text_or_nothing(
    tmp_path: Path, said: Any, text: str | None
) -> None:
    heard: list[Alert] = []
    post = Post(tmp_path, lambda _: said, heard.append, "mine")
    post.app.alert(when=lambda _: "bad", to=post.hear, name="good")
    async with post.app:
        assert await post.look() == [(False, "good")]
        assert [alert.text for alert in heard] == ([] if text is None else [text])


async def test_a_receiver_that_hangs_keeps_no_other_from_its_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(_: Alert) -> None:
        post.clock.advance(LEASE_SECONDS)
        await asyncio.Event().wait()

    monkeypatch.setattr(alerts, "_NOTIFY_SECONDS", 0.01)
    post = Post(tmp_path, lambda _: "bad", hang, "hung")
    post.app.alert(when=lambda _: "bad", to=_away, name="next")
    began = post.clock.wall_ns() / 1e9
    async with post.app:
        await post.watches[0].look(post.app.store())
        until = (await post.app.store().port().alerts())[2]["next"]["until"]
    assert until == began + 2 * LEASE_SECONDS, "time went on while it hung"
    assert "alert hung was not sent, and is again in a minute: TimeoutError" in caplog.text


async def test_a_function_that_hangs_takes_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, calls = threading.Event(), []

    def hang(alert: Alert) -> None:
        calls.append(alert)
        go.wait()

    monkeypatch.setattr(alerts, "_NOTIFY_SECONDS", 0.05)
    post = Post(tmp_path, lambda _: "bad", hang, "hung")
    async with post.app:
        for _ in range(3):
            await post.watches[0].look(post.app.store())
            post.clock.advance(LEASE_SECONDS)
        go.set()
    assert len(calls) == 1


def _away(_: Alert) -> None:
    raise OSError("away")


@pytest.mark.parametrize("door", ["worker", "command"])
def test_a_watch_goes_on_after_any_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    class Enough(BaseException):
        """The watch came again."""

    looks: list[BaseException] = [Enough(), OSError("no disk"), UsageError("full")]

    async def look(*_: object) -> list[Alert]:
        raise looks.pop()

    (tmp_path / "failing.py").write_text(
        "from taskq import TaskQ\napp = TaskQ('data')\n"
        "app.alert(when=lambda _: '', to=print, name='none')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Watch, "look", look)
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0)

    async def run() -> None:
        async with TaskQ(tmp_path / "data") as app:
            await Watch(app, look_seconds=0).run(app.store(), task_status=TASK_STATUS_IGNORED)

    def command() -> None:
        alerts.alerts.main(["failing:app"], standalone_mode=False)

    with pytest.raises(Enough):
        asyncio.run(run()) if door == "worker" else command()
    assert looks == []


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(302 if self.path == "/login" else 204)
            self.send_header("location", "/")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/", got
        http.shutdown()
        thread.join()


ALERT: Final = Alert(name="a", text="bad", is_over=True, directory="/d", since=5.0)


def test_a_webhook_is_signed_and_a_mail_says_it_all(
    server: tuple[str, list[tuple[dict[str, str], bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = server
    alerts.webhook(url, SECRET)(ALERT)
    ((headers, body),) = got
    assert json.loads(body) == {"type": "alert", "data": ALERT.as_dict()}
    assert is_genuine(key_of(SECRET), headers, body, float(headers["webhook-timestamp"]))
    with pytest.raises(HTTPError, match="302"):
        alerts.webhook(f"{url}login", SECRET)(ALERT)
    smtp = MagicMock()
    monkeypatch.setattr(smtplib, "SMTP", smtp)
    alerts.mail("ops@example.com", server="mx:587", login=("me", "pw"))(ALERT)
    (place, options), line = smtp.call_args, smtp.return_value.__enter__.return_value
    assert (place, options["timeout"] > 0) == (("mx", 587), True)
    assert [name for name, *_ in line.method_calls] == ["starttls", "login", "send_message"]
    line.login.assert_called_with("me", "pw")
    (message,) = line.send_message.call_args.args
    assert (message["To"], message["Subject"]) == ("ops@example.com", "over a: bad")
    assert message.get_content() == "over a: bad\n\nlog: /d\n"


NAMES: Final = ["plain", "no worker", "日本", "é", "a%b", "x" * 255]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_and_text_fit_the_headers(
    server: tuple[str, list[tuple[dict[str, str], bytes]]], monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:  # fmt: skip
    url, got = server
    text = "a\rb\nc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i"
    alert = dataclasses.replace(ALERT, name=name, text=text)
    for secret in ("", SECRET):
        alerts.webhook(url, secret)(alert)
    assert [json.loads(body)["data"]["name"] for _, body in got] == [name] * 2
    headers, body = got[1]
    assert is_genuine(key_of(SECRET), headers, body, float(headers["webhook-timestamp"]))
    smtp = MagicMock()
    monkeypatch.setattr(smtplib, "SMTP", smtp)
    alerts.mail("ops@example.com")(alert)
    (message,) = smtp.return_value.__enter__.return_value.send_message.call_args.args
    assert message["Subject"] == f"over {name}: a b c d e f g h i"[:200]


def test_alerts_need_no_worker_with_cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched.py").write_text(
        "from taskq import TaskQ\n"
        "app = TaskQ('data')\n"
        "app.alert(when=lambda sight: '' if sight.workers else 'none', to=print, name='none')\n"
        "empty = TaskQ('data')\n"
    )
    monkeypatch.chdir(tmp_path)
    done = taskq("alerts", "watched:app", "--once")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "alert none: none")
    assert taskq("alerts", "watched:app", "--once").stdout == ""
    assert taskq("alerts", "watched:empty", "--once").exit_code != 0
