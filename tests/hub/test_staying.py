"""A device that stays at its hub: a worker that syncs, and what a line without end does."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from unittest.mock import AsyncMock
from uuid import UUID, uuid4

import pytest
from anyio import create_task_group, fail_after, to_thread

from taskq import TaskQ
from taskq.connection.settings import HubSettings
from taskq.engine import LocalDisk
from taskq.errors import UsageError
from taskq.log.segments.identity import read_identity
from taskq_plugins.hub import Hub, models, outbox, server
from taskq_plugins.hub import line as lines
from taskq_plugins.hub.copies import kept
from taskq_plugins.hub.line import Allowance, HubReply, HubWaits, Line, last_note
from taskq_plugins.hub.outbox import LongPoll
from taskq_plugins.hub.registry import Registry
from taskq_plugins.hub.sync import Verdict, _pause
from tests.hub.place import Place
from tests.processes.harness import eventually
from tests.programs import run_forked


async def test_a_worker_of_several_logs_sends_each_as_one_of_the_devices(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("URL", url), ("TOKEN", place.token), ("EVERY", "0")):
        monkeypatch.setenv(f"TASKQ_HUB_{name}", value)
    app, logs = TaskQ(place.path / "a"), [place.path / "a", place.path / "b"]

    @app.task
    async def double(number: int) -> int:
        return number * 2

    other = TaskQ(place.path / "b")
    async with other:
        await other.enqueue_many([other.call_by_name(double.name, 1)])
    async with app, app.worker(logs=logs, sync=True):
        for log in logs:
            await to_thread.run_sync(eventually, lambda log=log: "lsn" in last_note(str(log)))
    copies = [copy for copy in kept(place.hub, "edge-7") if copy.is_there]
    names = {read_identity(LocalDisk(), str(log)).log_id for log in logs}  # type: ignore[union-attr]
    assert {copy.log_id for copy in copies} == names


async def test_what_a_device_needs_to_sync_loads_nothing_of_a_server() -> None:
    code = (
        "import sys, taskq_plugins.hub.sync, taskq_plugins.hub.sync_command as command\n"
        "served = {'fastapi', 'starlette', 'uvicorn', 'httpx'}\n"
        "print(sorted(served & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = await to_thread.run_sync(partial(run_forked, "-c", code, check=True))
    assert done.stdout == "[]\n"


async def test_a_worker_without_hub_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.path)
    with pytest.raises(UsageError, match="which hub"):
        TaskQ(place.path / "edge-7").worker(sync=True)


async def test_a_job_for_a_device_that_rests_comes_within_seconds(place: Place, url: str) -> None:
    """Also the first one of the hub, and the next, though nothing was written meanwhile."""
    await place.order(url, 2)


async def test_headers_and_bodies_that_do_not_come_end_their_lines(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("patience.HEAD_SECONDS", "hub.server._SLOW_SECONDS"):
        monkeypatch.setattr(f"taskq_plugins.{name}", 0.3)
    head = "POST /sync HTTP/1.1\r\nHost: x\r\nTaskq-Versions: 1\r\n"
    head += f"Authorization: Bearer {place.token}\r\n"
    for data in ("", "POST /sync HTT", head, head + "Content-Length: 900\r\n\r\n{"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(data.encode())
        with fail_after(30):
            reply = await reader.read()
        assert reply == b"" or reply.startswith(b"HTTP/1.1 408")
        writer.close()
    monkeypatch.undo()
    await place.write()
    assert await place.sync_over(Line(url, place.token)) == [Verdict.NEW]


async def test_a_device_tries_again_when_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = iter([False, False, True])
    monkeypatch.setattr("taskq_plugins.hub.sync.has_route", lambda _host: next(routes))
    monkeypatch.setattr("taskq_plugins.hub.sync._LOOK_SECONDS", 0.01)
    with fail_after(30):
        await _pause(600, "https://hub.example")
    assert next(routes, None) is None
    monkeypatch.setattr("taskq_plugins.hub.sync.has_route", lambda _host: True)
    began = asyncio.get_running_loop().time()
    await _pause(0.05, "https://hub.example")
    assert asyncio.get_running_loop().time() - began >= 0.05


async def test_a_line_goes_on_after_a_cancelled_or_cut_request(place: Place, url: str) -> None:
    line = Line(url, Registry(place.hub).enroll("edge-7"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silence = Line(f"http://127.0.0.1:{silent.getsockname()[1]}", "token")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await silence.request("GET", "/healthz", {})
        accepted = [silent.accept()[0] for _ in range(3)]
        assert [peer.recv(4)[:3] for peer in accepted] == [b"GET"] * 3
        assert all(peer.recv(2_000) and not peer.recv(1) for peer in accepted)  # it hung up
        for peer in accepted:
            peer.close()
    for status in (200, 200):
        assert (await line.request("GET", "/healthz", {})).status == status
    assert line._carrier._connection is not None
    line._carrier._connection.sock.shutdown(socket.SHUT_RDWR)
    assert (await line.request("GET", "/healthz", {})).status == 200
    await line.close()
    await silence.close()


async def test_a_cancelled_request_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
    connect, close = HTTPConnection.connect, HTTPConnection.close

    def connecting(connection: HTTPConnection) -> None:
        begun.set()
        assert goes_on.wait(30)
        connect(connection)

    def closing(connection: HTTPConnection) -> None:
        had_one = connection.sock is not None
        close(connection)
        if had_one:
            closed.set()

    monkeypatch.setattr(HTTPConnection, "connect", connecting)
    monkeypatch.setattr(HTTPConnection, "close", closing)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = Line(f"http://127.0.0.1:{silent.getsockname()[1]}", "token")
        asked = asyncio.create_task(line.request("GET", "/healthz", {}))
        assert await to_thread.run_sync(begun.wait, 30)
        asked.cancel()
        await asyncio.wait([asked])
        goes_on.set()
        assert await to_thread.run_sync(closed.wait, 30)
        await line.close()


async def test_a_malformed_token_raises_a_hub_error(url: str) -> None:
    line = Line(url, "two\nlines")
    with pytest.raises(models.HubError, match="Invalid header value"):
        await line.request("GET", "/healthz", {})


TOKEN = "tq1.edge-7.secret"  # noqa: S105 - of nobody


@pytest.fixture(autouse=True)
def _no_proxy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def answering(answer: bytes, again: bytes = b"") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port that notes what it is asked and answers, then says ``again`` until nobody listens."""
    asked: list[bytes] = []
    ended: list[asyncio.Event] = []

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        with suppress(ConnectionError):
            while again:
                writer.write(again)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended[-1].set()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked
        for end in ended:
            await end.wait()


async def test_a_proxy_of_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://ada:love%40lace@127.0.0.1:{port}")
        line = Line("https://hub.example:8443", TOKEN)
        with pytest.raises(models.HubError, match=r"cannot be reached .*403"):
            await line.request("GET", "/logs", {})
    (head,) = asked
    assert head.startswith(b"CONNECT hub.example:8443 HTTP/1.")
    assert b"Proxy-Authorization: Basic YWRhOmxvdmVAbGFjZQ==\r\n" in head
    assert b"secret" not in head, "the token is for the hub"


async def test_an_excepted_hub_is_reached_straight_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(b"") as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "hub.invalid")
        with pytest.raises(models.HubError, match="cannot be reached"):
            await Line("https://hub.invalid", TOKEN).request("GET", "/logs", {})
    assert not asked


def test_a_proxy_of_another_kind_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(UsageError, match="give a proxy as http://host:port"):
        Line("https://hub.example", TOKEN)


async def test_an_answer_without_an_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_ANSWER_BYTES_MAX", 100_000)
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000) as (port, _):
        with pytest.raises(models.HubError, match="an answer of over 100000 bytes"):
            await Line(f"http://127.0.0.1:{port}", TOKEN).request("GET", "/logs", {})


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async with answering(b"HTTP/1.0 200 OK\r\n\r\n{}") as (port, asked):
        answer = await Line(f"http://127.0.0.1:{port}", TOKEN).request("GET", "/logs", {})
    assert answer == HubReply(200, b"{}")
    assert b"transfer-encoding" not in asked[0].lower()


async def test_without_a_metered_setting_an_unknown_line_logs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    allowance = Allowance(HubSettings(), "http://127.0.0.1")
    await allowance.look()
    assert allowance.left() is None
    assert not caplog.records


async def test_a_hub_that_is_busy_says_how_long_to_wait() -> None:
    async def busy(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(busy, "127.0.0.1", 0) as server:
        line = Line(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN)
        with pytest.raises(models.HubError, match="503") as error:
            await line.ask(models.Ask(1, UUID(int=1), ()))
        assert error.value.seconds == 7
        await line.close()


_COUNT = 6
_ANEW = models.Refused(models.Trouble.SUPERSEDED, models.NOWHERE)


async def _synced(line: Line, log_id: UUID) -> models.CopyEnd:
    answer = await line.ask(models.Sync(log_id, 5, frozenset(), models.NOWHERE))
    assert isinstance(answer, models.CopyEnd)
    return answer


async def _held(place: Place, line: Line, log_id: UUID) -> asyncio.Task[models.Answer | None]:
    session, asking = (await _synced(line, log_id)).session, place.server._outbox.asking
    key, question = (line.device, log_id), models.Question(session, log_id, {}, 50.0)
    before = asking.get(key)
    held = asyncio.create_task(line.hold(question))
    await to_thread.run_sync(eventually, lambda: asking.get(key) is not before)
    return held


async def _end(
    place: Place, held: list[asyncio.Task[models.Answer | None]], lines: list[Line]
) -> None:
    place.server.end()
    await asyncio.wait(held)
    for line in lines:
        await line.close()


async def test_a_herd_that_one_job_wakes_shuts_no_other_device_out(
    place: Place, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REQUESTS_MAX", _COUNT // 2)
    lines = [Line(url, Registry(place.hub).enroll(f"edge-{number}")) for number in range(_COUNT)]
    async with Hub(place.hub) as hub:
        await hub.device("edge-0").enqueue(hub.call_by_name("update"))
        held = [await _held(place, line, uuid4()) for line in lines[1:]]
        log_id = uuid4()
        await hub.device("edge-1").enqueue(hub.call_by_name("update"))
        while not held[0].done():  # from when they are woken until the last has looked
            await _synced(lines[0], log_id)
    assert isinstance(await held[0], models.Given)
    await _end(place, held, lines)


@pytest.mark.parametrize("has_outbox", [False, True])
async def test_a_new_question_of_a_log_ends_the_one_before(
    place: Place, url: str, has_outbox: bool
) -> None:
    lines = [Line(url, place.token) for _ in range(_COUNT)]
    Registry(place.hub).enroll("other")
    async with Hub(place.hub) as hub:
        if has_outbox:
            await hub.device("other").enqueue(hub.call_by_name("update"))
        beside, log_id = [await _held(place, lines[0], uuid4())], uuid4()
        held = [await _held(place, line, log_id) for line in lines[1:]]
        with fail_after(10):
            assert all([await task in (None, _ANEW) for task in held[:-1]])
    assert not held[-1].done()
    assert not beside[0].done(), "it is of another log"
    await _end(place, held + beside, lines)


async def test_no_foreign_log_is_remembered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq_plugins.hub.copies._LOGS_MAX", 5)
    token, answers = place.token, dict[int, str]()
    for _ in range(8):
        asked = {"protocol": 1, "log_id": str(uuid4()), "created_ns": 5, "incompat": []}
        end = {"end": [0, 0, 0, ""]}
        answer = await place.ask("POST", "/sync", token, json=asked | end)
        answers[answer.status_code] = answer.text
    copies = place.server._copies
    assert answers.keys() == {200, 507}
    assert "has sent 5 logs, as many as it may: give it another name" in answers[507]
    assert len(copies._sessions) == len(copies.all()) == 5


async def test_a_question_waits_its_time_and_only_in_a_session(place: Place, url: str) -> None:
    line, log_id = Line(url, place.token), uuid4()
    with fail_after(10):
        assert await line.hold(models.Question(7, log_id, {}, 50.0)) == _ANEW
    session = (await _synced(line, log_id)).session
    assert await line.hold(models.Question(session, log_id, {}, 0.1)) is None
    await line.close()


class _Deaf:
    hub = HubSettings()

    def __init__(self, status: int) -> None:
        self.status = status

    async def hold(self, asked: models.Question) -> models.Answer | None:
        if not self.status:
            raise models.HubError("nobody answers")
        return models.understood(asked, self.status, b"")


def _question(session: int) -> models.Question:
    return models.Question(session, UUID(int=7), {}, 50.0)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 503])
async def test_an_unanswered_device_backs_off(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    line, backoff = _Deaf(status), outbox.backoff

    def noted(seconds: float, failures: int) -> float:
        pauses.append(backoff(seconds, failures))
        return 0.0

    monkeypatch.setattr(outbox, "backoff", noted)
    async with create_task_group() as tasks:
        holding = LongPoll(line, tasks)  # type: ignore[arg-type]
        for session in range(22):
            with monkeypatch.context() as patch:
                if session == 20:
                    patch.setattr(line, "hold", AsyncMock(return_value=_ANEW))
                holding.ask(_question(session))
                await holding.wait(30)
            assert holding.is_answered, "a session is due"
    assert all(pauses)
    assert sum(pauses[10:20]) > 600
    assert max(pauses) <= 600
    assert pauses[20] <= 2 * line.hub.every


async def test_on_a_line_that_has_become_metered_no_question_waits(place: Place, url: str) -> None:
    line = Line(url, place.token)
    session = (await _synced(line, UUID(int=7))).session
    line.allowance.metered = "the phone"
    with pytest.raises(HubWaits, match="the phone"):
        await line.hold(_question(session))
    await line.close()
