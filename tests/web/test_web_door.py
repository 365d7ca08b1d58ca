"""Attacks on the page: each is refused or inert, and a refusal names the remedy."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from http.cookies import SimpleCookie
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.routing import Route

from taskq import TaskQ
from taskq.cli.errors import WrongUsage
from taskq.cli.main import main
from taskq.connection.settings import HubSettings
from taskq.errors import UsageError
from taskq.log.read.reader import LogReader
from taskq.reading.record import Choice
from taskq.reading.stream import look_at_records
from taskq_plugins import patience
from taskq_plugins.hub.line import line_to
from taskq_plugins.web import door, mount
from taskq_plugins.web.command import _secret
from taskq_plugins.web.endpoints import Role, Visitor
from taskq_plugins.web.mount import make_site
from tests.processes.harness import Child
from tests.web.browser import HOST, ORIGIN, SECRET, browser, program, running, stranger
from tests.web.test_web_api import made

ANYWHERE = str(IPv4Address(0))
EVIL = "<script>alert(1)</script>\"'&--><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    app = TaskQ(tmp_path_factory.mktemp("web") / "data", durability="os")
    app.enqueue_sync(app.call_by_name(EVIL, EVIL).options(queue=EVIL, headers={EVIL: EVIL}))
    app.close_sync()
    return app.data_dir


# -- the token and the cookie ----------------------------------------------------------------------


async def test_the_printed_address_lets_one_browser_in_once(data: Path) -> None:
    async with stranger(data) as (client, keys):
        entered = await client.get(door.ENTRY, params={"token": keys.entry()})
        (cookie,) = SimpleCookie(entered.headers["set-cookie"]).values()
        shown = await client.get("/")
        client.cookies.clear()
        for token in (entered.url.params["token"], ""):
            assert (await client.get(door.ENTRY, params={"token": token})).status_code == 401
        assert (await client.get("/")).status_code == 401
    assert (entered.status_code, shown.status_code) == (200, 200)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie.key == "taskq_8321"
    assert cookie.value not in entered.text


def test_a_login_outlives_its_server_and_works_at_every_server_of_the_log(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os")
    app.store()
    app.close_sync()
    first, again = (door.AccessKeys(root=door.kept_root(str(tmp_path))) for _ in range(2))
    file = tmp_path / door.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (first.session, first.form) == (again.session, again.form)
    assert len({first.session, first.form, first.entry(), again.entry()}) == 4
    for mode in (0o640, 0o604):
        file.chmod(mode)
        assert door.kept_root(str(tmp_path)) == "", "others may know it"
    file.chmod(0o600)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert door.kept_root(str(tmp_path)) == ""
    assert door.kept_root(str(tmp_path / "nothing")) == ""


async def test_a_browser_that_is_in_lets_another_in_once(data: Path) -> None:
    async with browser(data) as client:
        assert door.ENTRY not in (await client.get("/log")).text
        page = (await client.get("/log?invite=1")).text
        (address,) = re.findall(rf"{re.escape(ORIGIN)}{door.ENTRY}\?token=[\w-]+", page)
        client.cookies.clear()
        assert (await client.get("/log?invite=1")).status_code == 401
        assert (await client.get(address)).status_code == 200
        assert (await client.get("/")).status_code == 200
        client.cookies.clear()
        assert (await client.get(address)).status_code == 401


async def test_a_page_without_secret_knows_no_program(data: Path) -> None:
    async with stranger(data) as (client, keys):
        keys._secret = ""
        for given in ("Bearer ", "Bearer", "bearer  "):
            refused = await client.get("/", headers={"Authorization": given})
            assert refused.status_code == 401


async def test_with_tls_the_cookie_is_for_tls_alone() -> None:
    place = door.SiteAddress(scheme="https", hosts=("a.example:9",), allow_actions=False)
    assert place.cookie_header("x", "https").endswith("; HttpOnly; SameSite=Strict; Secure")


# -- roles -----------------------------------------------------------------------------------------

ROLES = {"ana": "read", "bob": "operate", "eve": "admin"}
#: Fields of each act's form, for the job of the test.
ASKED: Final[dict[str, dict[str, Any]]] = {
    "enqueue": {"task": "mail.send", "arguments": {"number": 0}},
    "edit": {"priority": 9},
    "signal": {"value": 1},
    "many": {"act": "cancel", "q": "task:mail.send"},
    "limit_task": {"concurrency": 1},
    "set_slots": {"count": 1},
    "add_schedule": {"task": "mail.send", "arguments": {"number": 1}, "every": "1h"},
}


_NAMED: Final = {f"/api/schedules/{{name}}/{verb}": "hourly" for verb in ("pause", "resume")}


@contextlib.asynccontextmanager
async def roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Path, Callable[..., httpx.AsyncClient], list[Route]]]:
    routes: list[Route] = []

    def noting(**how: Any) -> Starlette:
        routes.extend(how["routes"])
        return Starlette(**how)

    monkeypatch.setattr(mount, "Starlette", noting)
    path, file = await made(tmp_path), tmp_path / "tokens"
    file.write_text("".join(f"{name} {role} {name * 12}\n" for name, role in ROLES.items()))
    file.chmod(0o600)
    place = door.SiteAddress(scheme="http", hosts=(HOST,), allow_actions=True)
    site = make_site(str(path), place, door.AccessKeys(tokens=door.TokenFile(file)))

    def client(name: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {name * 12}"} if name else {}
        transport = httpx.ASGITransport(app=site)
        return httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers)

    async with running(site):
        yield path, client, routes


async def acts_of(client: httpx.AsyncClient, routes: list[Route], job: str) -> dict[str, str]:
    document = (await client.get("/api/openapi.json")).json()["paths"]
    paths = {
        path: methods["post"]["operationId"]
        for path, methods in document.items()
        if "post" in methods
    }
    assert set(paths) == {
        route.path.replace(":path", "")
        for route in routes
        if route.path.startswith("/api/") and "POST" in (route.methods or ())
    }
    return {
        name: path.format_map({"id": job, "token": "x", "name": _NAMED.get(path, "mail")})
        for path, name in paths.items()
    }


async def entered(client: httpx.AsyncClient, name: str) -> None:
    client.headers["Origin"] = ORIGIN
    assert (await client.post(door.ENTRY, data={"token": name * 12})).status_code == 200


def end_of(path: Path) -> int:
    with LogReader.open(str(path)) as reader:
        return reader.stats().next_lsn


async def test_a_read_only_visitor_is_refused_every_action_and_sees_no_buttons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roles(tmp_path, monkeypatch) as (path, client, routes), client("ana") as program:
        jobs = (await program.get("/api/jobs")).json()["jobs"]
        before, places = end_of(path), await acts_of(program, routes, jobs[-1]["id"])
        assert len(places) >= 16
        for name, place in places.items():
            refused = await program.post(place, json=ASKED.get(name, {}))
            assert (refused.status_code, "ana may read" in refused.text) == (403, True), place
        async with client("") as person:
            await entered(person, "ana")
            acts = [route.path for route in routes if route.path.startswith("/act/")]
            assert acts == ["/act/{name}"]
            for name in places:
                fields = {"taskq.token": "", "id": jobs[-1]["id"], "name": "mail"}
                assert (await person.post(f"/act/{name}", data=fields)).status_code == 403, name
            pages = [route.path for route in routes if "{" not in route.path]
            for page in (*pages, *(f"/jobs/{job['id']}" for job in jobs)):
                if not page.startswith(("/api/", door.ENTRY)):
                    answer = await person.get(
                        page, params={"q": "task:mail"} if page == "/jobs" else {}
                    )
                    assert 'method="post"' not in answer.text, page
        assert end_of(path) == before


async def test_an_operator_does_nothing_irrevocable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roles(tmp_path, monkeypatch) as (_, client, _), client("bob") as bob:
        dead = (await bob.get("/api/jobs?q=state:dead")).json()["jobs"][0]["id"]
        assert (await bob.post(f"/api/jobs/{dead}/purge", json={})).status_code == 403
        many = {"act": "purge", "ids": [dead]}
        assert (await bob.post("/api/many", json=many)).status_code == 403
        async with client("") as person:
            await entered(person, "bob")
            page = (await person.get(f"/jobs/{dead}")).text
            assert ("act/requeue" in page, "act/purge" in page) == (True, False)
            assert "purge" not in (await person.get("/jobs?q=state:dead")).text
        assert (await bob.post(f"/api/jobs/{dead}/requeue", json={})).status_code == 200
        async with client("eve") as eve:
            other = (await eve.get("/api/jobs?q=state:dead")).json()["jobs"][0]["id"]
            assert (await eve.post(f"/api/jobs/{other}/purge", json={})).status_code == 200


async def test_each_action_is_audited_with_its_user_in_the_job_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roles(tmp_path, monkeypatch) as (path, client, routes), client("eve") as eve:
        names = await acts_of(eve, routes, "")
        for name in sorted(names, key=lambda name: name != "add_schedule"):
            q = f"state:{'dead' if name in ('requeue', 'purge') else 'ready'}"
            job = (await eve.get("/api/jobs", params={"q": q})).json()["jobs"][0]["id"]
            place = (await acts_of(eve, routes, job))[name]
            if place.startswith("/api/claims"):
                continue  # work, not an act: claims name their process
            answer = await eve.post(place, json=ASKED.get(name, {}))
            assert answer.status_code == 200, answer.text
            shown = look_at_records(str(path), 1, Choice(kinds=("acted",)), follow=False)
            (record,) = [record async for record in shown]
            by, _, what = record.reason.partition(": ")
            asked = ASKED.get(name, {}).get("act", name).partition("_")[0]
            assert by == "eve (web)", name
            assert what.split()[0] in (asked, "change", "forget"), name
            if record.job and name != "purge":
                with LogReader.open(str(path)) as reader:
                    events = reader.timeline(record.job)
                assert record.reason in {it.reason for it in events if it.kind == "acted"}


async def test_a_token_is_good_as_long_as_its_line_and_its_file_are(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    keys = door.AccessKeys(tokens=door.TokenFile(file))
    file.write_text(f"ana read {'a' * 40}\nbob admin {'b' * 40}  # on call\n")
    file.chmod(0o600)
    cookie = keys.log_in("a" * 40)
    assert keys.visitor_of_cookie(cookie) == ("ana", Role.READ)
    assert keys.visitor_of_header(f"Bearer {'b' * 40}") == ("bob", Role.ADMIN)
    assert keys.visitor_of_cookie(cookie.replace(".file.", ".ADMIN.")) is None
    file.write_text(f"ana operate {'a' * 40}\n")
    assert keys.visitor_of_cookie(cookie) == ("ana", Role.OPERATE)
    assert keys.visitor_of_header(f"Bearer {'b' * 40}") is None
    file.chmod(0o644)  # others may read it
    assert keys.visitor_of_cookie(cookie) is None
    file.chmod(0o600)
    file.write_text(f"ana operate {'c' * 40}\n")
    assert keys.visitor_of_cookie(cookie) is None
    for line in ("ana king " + "a" * 40, "ana read short", "ana read", f"a:b read {'a' * 40}"):
        with pytest.raises(UsageError, match="line 1 is no token"):
            door.visitors_of(line)


async def test_a_token_of_the_file_is_for_no_address_and_invites_nobody_past_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with roles(tmp_path, monkeypatch) as (_, client, _):
        for name in ROLES:
            async with client(name) as program, client("") as person:
                # It would stay in histories, and a link could log a browser in as somebody else.
                refused = await person.get(door.ENTRY, params={"token": name * 12})
                assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
                await entered(person, name)
                for visitor in (program, person):
                    page = (await visitor.get("/log?invite=1")).text
                    assert (">Log<" in page, "token=" in page, "invite=1" in page) == (
                        True, False, False,
                    )  # fmt: skip


async def test_a_person_enters_a_hub_with_a_token_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"eve admin {'eve' * 12}\n")
    file.chmod(0o600)
    place = door.SiteAddress(scheme="http", hosts=(HOST,), allow_actions=False)
    hub = mount.make_hub(str(tmp_path), place, door.AccessKeys(tokens=door.TokenFile(file)), dict)
    transport = httpx.ASGITransport(app=hub)
    async with running(hub), httpx.AsyncClient(transport=transport, base_url=ORIGIN) as person:
        assert f'method="post" action="{door.ENTRY}"' in (await person.get("/")).text
        await entered(person, "eve")
        assert (await person.get("/")).status_code == 200


async def test_any_name_of_the_outer_apps_login_acts_and_is_in_the_audit(tmp_path: Path) -> None:
    path = await made(tmp_path)
    names = {
        "ana\n": "ana\\n (web)", "a:b": "a b (web)", "\x01" * 90: "\\x01" * 12 + "\\x (web)",
        "\u0416" * 90: "\u0416" * 50 + " (web)", "": "web",
    }  # fmt: skip
    who = [""]
    place = door.SiteAddress(
        scheme="http", hosts=(HOST,), allow_actions=True,
        allows=lambda _: Visitor(who[0], Role.ADMIN),
    )  # fmt: skip
    site = make_site(str(path), place, door.AccessKeys())
    transport, head = httpx.ASGITransport(app=site), {"Origin": ORIGIN}
    async with (
        running(site),
        httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=head) as person,
    ):
        page = (await person.get("/schedules")).text
        (key, *_) = re.findall(r'name="taskq.token" value="([^"]+)"', page)
        for who[0] in names:
            form = {"taskq.token": key, "name": "default"}
            assert (await person.post("/act/pause", data=form)).status_code < 400
    shown = look_at_records(str(path), 9, Choice(kinds=("acted",)), follow=False)
    said = [record.reason.partition(":")[0] async for record in shown]
    assert said[-len(names) :] == list(names.values())


# -- other names and other pages -------------------------------------------------------------------

#: A visitor with or without leave to act, path and headers; status and words of the answer.
Asked = tuple[str, str, dict[str, str], int, str]
REFUSED: Final[dict[tuple[Callable[..., Any], bool], list[Asked]]] = {
    (stranger, False): [
        ("GET", path, head, 401, "open the address that taskq web printed")
        for path, head in (
            *((path, {}) for path in ("/", "/static/x.css", "/api/stats", "/nothing", "//enter")),
            ("/", {"Cookie": "taskq_8321="}),
            ("/", {"Cookie": "taskq_8321=wrong; taskq_8321=\xe9"}),
            ("/", {"Cookie": "=" * 500}),
            ("/", {"Authorization": "Bearer "}),
            ("/", {"Authorization": "Bearer wrong"}),
            ("/", {"Authorization": SECRET}),
            ("/", {"Authorization": f"Basic {SECRET}"}),
        )
    ],
    (browser, False): [
        *(
            ("GET", path, {}, 404, "")
            for path in (
                *("/static/../command.py", "/static/..%2fcommand.py", "/static/%2e%2e/door.py"),
                *("/static//etc/passwd", "/static/page.css%00", "/static/", "/../../etc/passwd"),
                *("/%", "/%00", "/no", "/api/no", "/static/" + "y" * 1_000),
            )
        ),
        *(
            # By such a name a foreign page would be of our origin: DNS rebinding.
            ("GET", "/", {"Host": host}, 421, f"open {ORIGIN}")
            for host in (
                *("evil.example", "127.0.0.1", "127.0.0.1:80", f"{HOST}.evil.example"),
                *(f"evil@{HOST}", ""),
            )
        ),
        *(
            (method, "/api/jobs", {}, 403, "--allow-actions")
            for method in ("POST", "PUT", "DELETE", "PATCH")
        ),
    ],
    (browser, True): [
        *(
            (method, "/", {"Origin": origin}, 403, "may not ask here")
            for method in ("GET", "POST")
            for origin in (
                *("https://evil.example", "null", f"https://{HOST}", "http://127.0.0.1:8322"),
                f"{ORIGIN}.",
            )
        ),
        ("POST", "/api/jobs", {}, 403, ""),  # a cookie alone
        ("POST", "/queues", {"Origin": ""}, 403, ""),
    ],
    (program, False): [("POST", "/api/jobs", {}, 403, "--allow-actions")],
    (program, True): [
        ("GET", "/?q=" + "x" * 9_000, {}, 414, ""),
        ("GET", "/" + "x" * 3_000, {}, 414, ""),
        ("POST", "/", {"Content-Length": "9" * 4_000}, 413, ""),
        ("POST", "/", {"Content-Length": "-1"}, 413, ""),
    ],
}


def is_closed(answer: httpx.Response) -> bool:
    policy = answer.headers["content-security-policy"]
    forbidden = "default-src 'none'; script-src 'self'; style-src 'self'"
    others = {
        "x-content-type-options": "nosniff", "cache-control": "no-store",
        "referrer-policy": "same-origin",
    }  # fmt: skip
    return (
        policy.startswith(forbidden)
        and "unsafe" not in policy
        and "frame-ancestors 'none'" in policy
        and others.items() <= dict(answer.headers).items()
    )


@pytest.mark.parametrize(("who", "leave"), REFUSED)
async def test_a_wrong_request_is_refused(data: Path, who: Callable[..., Any], leave: bool) -> None:
    async with who(data, allow_actions=leave) as made:
        client, keys = made if who is stranger else (made, None)
        for method, path, head, status, words in REFUSED[who, leave]:
            asked = client.build_request(
                method, "/", headers={name: text.encode("latin-1") for name, text in head.items()}
            )
            asked.url = httpx.URL(ORIGIN).copy_with(raw_path=path.encode())
            refused = await client.send(asked)
            assert (refused.status_code, words in refused.text) == (status, True), (path, head)
            assert is_closed(refused)
            is_problem = refused.headers["content-type"] == "application/problem+json"
            assert is_problem == path.startswith("/api/"), path
            asks = refused.headers.get("www-authenticate") == "Bearer"
            assert asks == (is_problem and status == 401), path
            secrets = {keys.entry(), keys.session, keys.form} if keys is not None else set()
            assert not secrets & set(re.findall(r"[\w-]+", refused.text))
        for path in ("/", "/static/page.js", door.ENTRY):
            assert is_closed(await client.get(path))


async def test_localhost_is_a_name_of_its_own(data: Path) -> None:
    async with program(data) as client:
        given = {"Host": "LOCALHOST:8321", "Origin": "http://localhost:8321"}
        assert (await client.get("/", headers=given)).status_code == 200


@pytest.mark.parametrize("path", ["/api/jobs", "/api/claims", "/act/pause"])
async def test_a_broken_off_body_is_no_error_of_the_server(data: Path, path: str) -> None:
    """With bytes that are no chunk, too, a server passes on that nobody is there any more."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    head = {"host": HOST, "authorization": f"Bearer {SECRET}"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in head.items()],
    }
    place = door.SiteAddress(scheme="http", hosts=(HOST,), allow_actions=True)
    await make_site(str(data), place, door.AccessKeys(SECRET))(scope, receive, send)
    assert sent[0]["status"] == 400


# -- the command -----------------------------------------------------------------------------------


def get(address: str, cookie: str = "", context: ssl.SSLContext | None = None) -> tuple[str, str]:
    asked = urllib.request.Request(address, headers={"Cookie": cookie})  # noqa: S310 - our own
    with urllib.request.urlopen(asked, context=context) as answer:  # noqa: S310 - likewise
        return answer.read().decode(), answer.headers.get("Set-Cookie", "").partition(";")[0]


@pytest.mark.parametrize("is_tls", [False, True])
def test_the_command_prints_an_address_that_works(data: Path, tmp_path: Path, is_tls: bool) -> None:
    words: list[object] = [sys.executable, "-m", "taskq", "web", data]
    context = None
    if is_tls:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost"],
            check=True, capture_output=True,
        )  # fmt: skip
        words += ["--bind", ANYWHERE, "--name", "localhost", "--tls-cert", cert, "--tls-key", key]
        context = ssl.create_default_context(cafile=cert)
    with Child(*words) as child:
        address = child.line()
        assert address.startswith("https://localhost:" if is_tls else "http://127.0.0.1:")
        page, cookie = get(address, context=context)
        assert "This browser is known now" in page
        page, _ = get(address.partition(door.ENTRY)[0], cookie, context)
        assert ">Now</h1>" in page
        child.send(signal.SIGINT)
        assert child.process.wait(10) == 0


def test_a_case_file_is_looked_at_and_not_changed(data: Path, tmp_path: Path) -> None:
    case = str(tmp_path / "case.zip")
    assert CliRunner().invoke(main, ["report", "-d", str(data), "-o", case]).exit_code == 0
    refused = CliRunner().invoke(main, ["web", case, "--allow-actions"])
    assert (refused.exit_code, "to be looked at" in refused.stderr) == (2, True)
    with Child(sys.executable, "-m", "taskq", "web", case) as child:
        address = child.line()
        _, cookie = get(address)
        assert "<h1>Jobs</h1>" in get(address.partition(door.ENTRY)[0] + "/jobs", cookie)[0]


def test_a_secret_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    made = _secret(tmp_path / "token")
    assert len(made) >= 43
    assert _secret(tmp_path / "token") == made
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(WrongUsage, match="may be read by others: chmod 600"):
        _secret(tmp_path / "token")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "token").write_text("short")
    with pytest.raises(WrongUsage, match="secret of 32 characters"):
        _secret(tmp_path / "token")


@pytest.mark.parametrize("reads", [_secret, lambda file: line_to(HubSettings(), "http://h", file)])
def test_a_secret_of_another_user_or_of_no_file_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="no regular file"):
        reads(tmp_path / "pipe")
    token = tmp_path / "token"
    token.write_text("s" * 43)
    token.chmod(0o600)
    reads(token)
    if os.getuid() == 0:
        os.chown(token, 4_242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match="belongs to user"):
        reads(token)


HIDDEN: Final = "hunter2"
PAYLOAD: Final[dict[str, Any]] = {
    "to": "ada", "password": HIDDEN, "nested": {"auth": [HIDDEN, {"x": HIDDEN}]}, "pin": HIDDEN,
}  # fmt: skip
PLACES: Final = ("/", "/jobs", "/jobs/{id}", "/failures", "/log")
ANSWERS: Final = (
    "/api/jobs", "/api/jobs/{id}", "/api/jobs/{id}/result", "/api/failures", "/api/stats",
)  # fmt: skip


@pytest.fixture
async def data_with_secrets(tmp_path: Path) -> tuple[Path, str]:
    """Return the id of a failed job that printed all of its values."""
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="log_in", retry=1)
    async def log_in(**given: Any) -> None:
        raise ValueError(f"refused: password={given['password']!r}, {given}")

    async with app:
        call = log_in.options(headers={"authorization": f"Bearer {HIDDEN}"}, key=f"pwd:{HIDDEN}")
        job = await call.enqueue(**PAYLOAD)
        await app.worker(burst=True).run()
    return tmp_path / "data", job.id


async def test_nothing_a_browser_gets_has_a_secret(data_with_secrets: tuple[Path, str]) -> None:
    path, job = data_with_secrets
    async with browser(path) as client:
        for place in (*PLACES, *ANSWERS):
            answer = await client.get(place.format(id=job))
            assert answer.status_code == 200, place
            assert HIDDEN not in answer.text, place
        assert "(set)" in (await client.get(f"/jobs/{job}")).text
        async with TaskQ(path, durability="os") as app:
            large = await app.enqueue_by_name("large", password=HIDDEN, text="x" * 100_000)
        page = (await client.get(f"/jobs/{large.id}")).text
        assert HIDDEN not in page
        assert "x… (100" in page


@pytest.mark.parametrize(
    "word", [HIDDEN, '"password":"h', '"h', "'h", "password='h", '"x":"h', '"pwd:h"', "key:h"]
)
async def test_searches_leak_no_secret(data_with_secrets: tuple[Path, str], word: str) -> None:
    path, _ = data_with_secrets
    async with browser(path) as client:
        for query in (word, *word.split()):
            if query == HIDDEN or "h" in query[-2:]:
                answer = await client.get("/api/jobs", params={"q": query})
                assert answer.json()["jobs"] == [], query
        result = await client.get("/api/jobs", params={"q": '"to":"ada"'})
        assert len(result.json()["jobs"]) == 1


async def test_programs_get_what_was_given(data_with_secrets: tuple[Path, str]) -> None:
    path, job = data_with_secrets
    async with program(path) as client:
        answer = (await client.get(f"/api/jobs/{job}")).json()
    assert answer["payload"]["data"] == {"**": PAYLOAD}
    assert answer["headers"] == {"authorization": f"Bearer {HIDDEN}"}


async def test_show_secrets_shows_and_finds_secrets(data_with_secrets: tuple[Path, str]) -> None:
    path, job = data_with_secrets
    async with browser(path, show_secrets=True) as client:
        assert HIDDEN in (await client.get(f"/jobs/{job}")).text
        result = await client.get("/api/jobs", params={"q": HIDDEN})
        assert HIDDEN in (await client.get(f"/api/jobs/{job}")).text
    assert len(result.json()["jobs"]) == 1


WORKER: Final = Path(__file__).parents[2] / "examples" / "js_worker" / "worker.mjs"


class Site:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "data"
        with TaskQ(self.path, durability="os"):
            """There is a log now."""
        token = folder / "token"
        words = (self.path, "--allow-actions", "--token-file", token)
        self.child = Child(sys.executable, "-m", "taskq", "web", *words)
        self.home = self.child.line().partition("/enter")[0]
        self.secret = token.read_text().strip()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.home.partition("//")[2], timeout=60)

    def send(self, connection: http.client.HTTPConnection, path: str, **body: Any) -> None:
        head = {"Authorization": f"Bearer {self.secret}"}
        connection.request("POST", f"/api/{path}", json.dumps(body), head)

    def post(self, path: str, **body: Any) -> Any:
        connection = self.connect()
        self.send(connection, path, **body)
        answer = connection.getresponse()
        answered = json.loads(answer.read())
        assert answer.status == 200, answered
        connection.close()
        return answered


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with site.child:
        yield site


def counts(site: Site) -> dict[str, int]:
    with LogReader.open(str(site.path)) as reader:
        queues = reader.stats().queues
    states = ("ready", "scheduled", "running", "succeeded", "dead", "cancelled", "expired")
    return {name: sum(getattr(queue, name) for queue in queues) for name in states}


def test_a_claim_whose_client_disconnects_takes_no_job(site: Site) -> None:
    for _ in range(3):
        waiting = site.connect()
        site.send(waiting, "claims", wait=60, lease=3_600)
        waiting.close()
    # The last of them may be heard only now: what it has got by then is given back.
    made = site.post("jobs", task="a")
    (claim,) = site.post("claims", wait=30)
    assert claim["id"] == made["id"]
    site.post(f"claims/{claim['token']}/ack")
    assert counts(site)["succeeded"] == 1


@pytest.mark.skipif(not shutil.which("node"), reason="needs node: apt-get install nodejs")
def test_a_worker_in_plain_javascript_runs_a_hundred_jobs(site: Site) -> None:
    calls = [
        *(("text.upper", {"text": f"ü{number}"}) for number in range(49)),
        *(("orders.total", {"prices": [number, 0.5]}) for number in range(49)),
        *(("text.upper", {}), ("nobody.knows", {})),
    ]
    jobs = [
        site.post("jobs", task=task, arguments=arguments, queue="js", attempts=1)["id"]
        for task, arguments in calls
    ]
    environment = {**os.environ, "TASKQ_URL": site.home, "TASKQ_TOKEN": site.secret}
    with subprocess.Popen(
        ["node", WORKER], env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline().split()[:3:2] for _ in jobs]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert sorted(said) == sorted(
        [*(["succeeded", job] for job in jobs[:-2]), *(["failed", f"{job}:"] for job in jobs[-2:])]
    )
    with LogReader.open(str(site.path)) as reader:
        views = [view for job in jobs if (view := reader.job(reader.parse_id(job))) is not None]
    assert [json.loads(view.result or b"") for view in views[:-2]] == [
        *(f"Ü{number}" for number in range(49)),
        *(number + 0.5 for number in range(49)),
    ]
    assert [view.reason.partition("\n")[0] for view in views[-2:]] == [
        "TypeError: Cannot read properties of undefined (reading 'toUpperCase')",
        "Error: this worker has no task nobody.knows",
    ]
    assert counts(site)["running"] == 0


@pytest.mark.slow  # some requests may wait for a minute
def test_nothing_allowed_breaks_the_api_or_loses_a_job(site: Site, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="needs the extra browser")
    made = [site.post("jobs", task="kept", queue="kept")["id"] for _ in range(50)]
    words = [
        "run", f"{site.home}/api/openapi.json", "--header", f"Authorization: Bearer {site.secret}",
        # Rules outside of a schema: one of two fields is required, and the length of names in
        # bytes.
        "--exclude-checks", "positive_data_acceptance",
        "--max-examples", "5", "--seed", "1", "--request-timeout", "70", "--no-color",
    ]  # fmt: skip
    program = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    run = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout[-5_000:] + run.stderr[-1_000:]
    site.child.send(signal.SIGINT)
    assert site.child.process.wait(20) == 0
    with LogReader.open(str(site.path)) as reader:
        happened = Counter(record.kind for record in reader.records())
        assert not reader.verify().damage
        assert None not in [reader.job(reader.parse_id(job)) for job in made]
    assert sum(counts(site).values()) == happened["enqueued"] - happened["purged"]


HALVES = {
    "nothing": b"",
    "a head": b"GET /api/stats HTTP/1.1\r\nHost: x\r\nX-Slow:",
    "a body": b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    app = TaskQ(tmp_path / "data", durability="os")
    app.stats_sync()
    app.close_sync()
    with patience.listen("127.0.0.1", 0) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        place = door.SiteAddress(scheme="http", hosts=(host,), allow_actions=True)
        server = mount.server_of(make_site(str(tmp_path / "data"), place, door.AccessKeys()), None)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_half_requests_on_all_lines_shut_nobody_out(address: tuple[str, int], half: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(mount._CONNECTIONS_MAX):
            line = stack.enter_context(socket.create_connection(address, timeout=20))
            line.sendall(half)
        for _ in range(3):
            answer = httpx.get(f"http://{address[0]}:{address[1]}/api/stats", timeout=20)
            assert answer.status_code == 401, answer.text


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_what_does_not_come_ends_its_line(
    address: tuple[str, int], half: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(patience, "BODY_SECONDS", 0.3)
    whole = b"GET /api/stats HTTP/1.1\r\nHost: x\r\n\r\n"
    for before in (b"", whole):
        with (
            contextlib.suppress(ConnectionError),  # another notice of the end
            socket.create_connection(address, timeout=20) as line,
        ):
            line.sendall(before + half)
            while line.recv(65_536):
                line.sendall(b" ")
