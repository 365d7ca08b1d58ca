"""Examples, each run as its reader would run it."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from click.testing import CliRunner
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.agent.__main__ import main as agent_main
from examples.agent.app import app as agent_app
from examples.dead_mirror import mirror as example
from examples.fastapi_app import web as fastapi_example
from examples.from_celery.world import Order, world
from examples.hub.__main__ import main as hub_main
from examples.hub.line import HubProcess, free_port
from taskq import State, TaskLog, TaskQ, retry, telemetry
from taskq.engine import LogReader
from taskq.testing import Sandbox
from taskq_plugins.hub import Hub
from taskq_plugins.hub.registry import Registry
from tests.programs import run_forked
from tests.tables import ROOT
from tests.terminal import Shell, steps
from tests.test_readme import TUTORIALS, is_shown


async def test_an_agent_that_is_killed_goes_on_and_pays_each_answer_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It dies while the third of four answers is on its way: that one alone is asked for again."""
    before = agent_app.data_dir
    try:
        await agent_main(tmp_path / "log")
    finally:
        await agent_app.close()
        agent_app.data_dir = before
    killed, answer, bill = capsys.readouterr().out.splitlines()
    assert "3rd time" in killed
    assert answer == "Fuji is 2184 m higher than Aso."
    assert bill == "asked 5 times, paid 4 answers"


def test_logs_come_to_a_hub_byte_for_byte_over_a_line_that_drops(tmp_path: Path) -> None:
    words = ["--devices", "2", "--kills", "2", "--no-tables", "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(hub_main, words)
    assert result.exit_code == 0, result.output
    assert re.search(
        r"2 logs came after \d+ tries: .*the\s+hub\s+was\s+killed 2\s+times", result.output
    )
    assert "2 segments: equal" in result.output


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")
def test_tables_of_fifty_devices_equal_the_python_fold(tmp_path: Path) -> None:
    result = CliRunner().invoke(hub_main, ["--work", str(tmp_path / "work")])
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"rows, equal to the Python fold", result.output)) == 6


async def mirrored(path: Path) -> list[dict[str, Any]]:
    async with await TaskLog.open(path) as log:
        views = await log.peek(queue=example.QUEUE)
    return [json.loads(view.payload) for view in views]


async def test_each_dead_letter_is_mirrored_once_even_without_a_hook(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "jobs")

    @app.task(name="mail.send", retry=retry.exponential(attempts=1))
    async def send(to: str) -> None:
        raise ValueError(f"no such address: {to}")

    async def run() -> None:
        await app.worker(burst=True).run()

    async with app:
        first = await send.enqueue("a@b.c")
        await run()
        example.mirror(app)
        second = await send.enqueue("d@e.f")
        await run()
        assert len(await mirrored(tmp_path / "jobs-dead")) == 2
        await run()  # which finds both again
    letters = await mirrored(tmp_path / "jobs-dead")
    assert [letter["job"] for letter in letters] == [first.id, second.id]
    assert {letter["task"] for letter in letters} == {"mail.send"}
    assert [letter["message"] for letter in letters] == [
        "no such address: a@b.c", "no such address: d@e.f",
    ]  # fmt: skip
    assert letters[0]["error"] == "ValueError"
    assert json.loads(letters[0]["payload"]) == {"to": "a@b.c"}


DJANGO = ROOT / "examples" / "django_app"

#: Requests as lines of (method, path, data), answers as lines of JSON, through the frameworks' own
#: test clients.
DJANGO_REQUESTS = """
import json, sys
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", run_syncdb=True, verbosity=0)
for method, path, data in json.loads(sys.argv[1]):
    answer = getattr(Client(), method)(path, data or {})
    print(json.dumps([answer.status_code, answer.json()]))
"""
FLASK_REQUESTS = """
import json, sys
from examples.flask_app.web import web
for method, path, data in json.loads(sys.argv[1]):
    answer = getattr(web.test_client(), method)(path, data=data)
    print(json.dumps([answer.status_code, answer.get_json(silent=True)]))
"""


def run(folder: Path, environment: dict[str, str], *command: object) -> str:
    done = run_forked(*command, cwd=folder, env={**os.environ, **environment})
    assert not done.returncode, done.stderr
    return done.stdout


def ask(
    folder: Path, environment: dict[str, str], program: str, *requests: tuple[str, str, object]
) -> list[Any]:
    shown = run(folder, environment, "-c", program, json.dumps(requests))
    return [json.loads(line) for line in shown.splitlines()]


def test_django_enqueues_after_a_commit_and_its_command_runs_the_jobs(tmp_path: Path) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_DIR": str(tmp_path)}
    shop = (DJANGO, environment, DJANGO_REQUESTS)
    sold, refused = ask(
        *shop,
        ("post", "/buy", {"email": "ann@example.com", "item": "kettle"}),
        ("post", "/buy", {"email": "ann@example.com", "item": "unicorn"}),
    )
    assert (sold[0], sold[1]["order"]) == (201, 1)
    assert refused == [409, {"error": "unicorn: sold out"}]
    job = f"/jobs/{sold[1]['job']}"
    run(DJANGO, environment, "manage.py", "worker", "--burst")
    shown, unknown = ask(*shop, ("get", job, None), ("get", "/jobs/nothing", None))
    result = "sent the receipt for kettle for ann@example.com"
    assert shown == [200, {"state": "succeeded", "result": result, "reason": ""}]
    assert unknown[0] == 404
    # An order that was rolled back left no job.
    with LogReader.open(str(tmp_path / "jobs")) as reader:
        (queue,) = reader.stats().queues
    assert (queue.queue, queue.succeeded, queue.ready) == ("mail", 1, 0)


def test_flask_enqueues_in_a_route_and_its_command_runs_the_jobs(tmp_path: Path) -> None:
    environment = {"WORDS_DIR": str(tmp_path / "jobs"), "PYTHONPATH": str(ROOT)}
    web = (tmp_path, environment, FLASK_REQUESTS)
    good, bad = ask(*web, ("post", "/count", "to be or not to be or"), ("post", "/count", " "))
    assert [status for status, _ in (good, bad)] == [202, 202]
    flask = ("-m", "flask", "--app", "examples.flask_app.web")
    run(tmp_path, environment, *flask, "worker", "--burst")
    counted, waits, unknown = ask(
        *web,
        ("get", f"/jobs/{good[1]['job']}", None),
        ("get", f"/jobs/{bad[1]['job']}", None),
        ("get", "/jobs/nothing", None),
    )
    result = {"to": 2, "be": 2, "or": 2}
    assert counted == [200, {"state": "succeeded", "result": result, "reason": ""}]
    assert waits[1]["state"] in {"scheduled", "ready"}
    assert waits[1]["reason"] == "ValueError: there are no words in this text"
    assert unknown[0] == 404


@pytest.fixture
def spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.use(provider)
    monkeypatch.setattr(fastapi_example, "tracer", provider.get_tracer("orders"))
    fastapi_example.jobs.data_dir = tmp_path / "jobs"
    yield exporter
    telemetry.use(None)


async def served(order: int) -> tuple[dict[str, Any], list[int]]:
    transport = httpx.ASGITransport(fastapi_example.web)
    async with (
        fastapi_example.web.router.lifespan_context(fastapi_example.web),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        placed = await client.post(f"/orders/{order}")
        job_id = placed.json()["job"]
        ended = 0
        async for _ in fastapi_example.jobs.stream(kinds=["succeeded"]):
            ended += 1
            if ended == 2:
                break
        shown = (await client.get(f"/jobs/{job_id}")).json()
        wrong = [await client.get("/jobs/none"), await client.post("/orders/x")]
        return shown, [placed.status_code, *(answer.status_code for answer in wrong)]


def test_a_request_its_job_and_its_child_are_one_trace(spans: InMemorySpanExporter) -> None:
    shown, codes = asyncio.run(served(7))
    assert shown == {"state": "succeeded", "result": "order 7 is confirmed", "reason": ""}
    assert codes == [202, 404, 422]
    finished = spans.get_finished_spans()
    (root,) = [span for span in finished if span.name == "POST /orders/7"]
    assert root.parent is None
    story: list[ReadableSpan] = [root]
    while children := [job for job in finished if _is_child(job, story[-1])]:
        assert len(children) == 1, [span.name for span in children]
        story += children
    assert [span.name for span in story] == [
        "POST /orders/7", "send orders", "process orders", "create mail", "process mail", "smtp",
    ]  # fmt: skip
    kinds = [span.kind.name for span in story]
    assert kinds == ["SERVER", "PRODUCER", "CONSUMER", "PRODUCER", "CONSUMER", "INTERNAL"]
    assert len({span.context.trace_id for span in story}) == 1
    seen = [dict(span.attributes or {}) for span in story]
    assert seen[2]["messaging.message.id"] == seen[1]["messaging.message.id"]
    assert seen[4]["messaging.message.id"] != seen[2]["messaging.message.id"]
    assert (seen[2]["taskq.outcome"], seen[4]["taskq.outcome"]) == ("succeeded", "succeeded")
    assert seen[5] == {"order": 7}
    assert all((span.start_time or 0) <= (span.end_time or 0) for span in story)


def _is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


class Device:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.environment = os.environ | {
            "NOTES_HOME": str(path / "home"),
            "NOTES_SERVER": f"http://127.0.0.1:{self.port}",
            "PYTHONPATH": str(ROOT),
        }
        self._server: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, **environment: str) -> str:
        done = run_forked("-m", *words, env=self.environment | environment, cwd=self.path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def serve(self) -> None:
        command = [sys.executable, "-m", "examples.notes", "serve", "--port", str(self.port)]
        self._server = subprocess.Popen(command, env=self.environment, cwd=self.path)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/", trust_env=False)
            except httpx.HTTPError:
                continue
            return
        raise AssertionError("the server does not answer")

    def work(self) -> None:
        self.run("taskq", "worker", "examples.notes.app:app", "--burst")

    def received(self, folder: str) -> dict[str, bytes]:
        result = (self.path / "home" / "SERVER" / folder).iterdir()
        return {item.name: item.read_bytes() for item in result}

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@pytest.mark.timeout(120)
def test_records_written_offline_arrive_once_and_are_sent_anew(tmp_path: Path) -> None:
    device, photo = Device(tmp_path), tmp_path / "list.jpg"
    photo.write_bytes(b"a photo" * 1_000)
    digest = hashlib.sha256(photo.read_bytes()).hexdigest()
    note = device.run("examples.notes", "add", "bread", "--photo", str(photo)).strip()
    device.run("examples.notes", "edit", note, "bread, milk")
    queue = str(tmp_path / "home" / "queue")
    with LogReader.open(queue) as reader:
        counts = {item.queue: (item.ready, item.cancelled) for item in reader.stats().queues}
    assert counts == {"notes": (1, 1), "photos": (1, 0)}
    device.serve()
    hub = HubProcess(tmp_path / "hub")
    try:
        device.work()
        arrived = json.loads(device.received("notes")[f"{note}.json"])
        assert (arrived["text"], arrived["revision"]) == ("bread, milk", 2)
        assert device.received("photos") == {digest: photo.read_bytes()}
        for folder in ("notes", "photos"):
            shutil.rmtree(tmp_path / "home" / "SERVER" / folder)
            (tmp_path / "home" / "SERVER" / folder).mkdir()
        _order_all(device, hub, queue)
        assert json.loads(device.received("notes")[f"{note}.json"]) == arrived
        assert device.received("photos") == {digest: photo.read_bytes()}
    finally:
        device.stop()
        hub.stop()


def _order_all(device: Device, hub: HubProcess, queue: str) -> None:
    token = Registry(hub.path).enroll("edge-7")
    asyncio.run(hub.start())
    programs = Hub(hub.path)
    job = programs.device("edge-7").enqueue_sync(programs.call_by_name("notes.resend"))
    settings = {
        "TASKQ_HUB_URL": f"http://127.0.0.1:{hub.port}", "TASKQ_HUB_TOKEN": token,
        "TASKQ_HUB_ACCEPT": '["notes.*"]',
    }  # fmt: skip
    assert "1 job came" in device.run("taskq", "sync", queue, **settings)
    device.work()
    device.run("taskq", "sync", queue, **settings)
    assert job.result_sync(timeout=5) == 1
    programs.close_sync()


# -- from Celery -----------------------------------------------------------------------------------

_ORDER = Order(customer="ann", email="ann@example.com", articles=("tea", "coffee"))
_CHARGES = [("ann", 900)]
_MAILS = [("ann@example.com", "paid: ann 900")]
_LIMIT_SECONDS = 40


@pytest.fixture
def new_world() -> Iterator[None]:
    world.clear()
    yield
    world.clear()


def _no_logging(**_: object) -> None: ...


@pytest.mark.usefixtures("new_world")
async def test_the_port_retries_adds_up_charges_and_mails() -> None:
    """Two prices and the charge fail once each: their retries are waited for in fake time."""
    from examples.from_celery import taskq_app  # noqa: PLC0415 - both apps name the same tasks

    async with Sandbox(taskq_app.app) as box:
        handle = await asyncio.to_thread(taskq_app.buy, _ORDER)
        report = await box.drain(with_scheduled=True, raises=False)
        assert report.outcomes == {"retried": 3, "succeeded": 5}
        assert (await handle.progress()).succeeded == 5
    assert (world.charges, world.mails) == (_CHARGES, _MAILS)


@pytest.mark.usefixtures("new_world")
async def test_the_port_reminds_once_a_day() -> None:
    from examples.from_celery import taskq_app  # noqa: PLC0415

    async with Sandbox(taskq_app.app) as box:
        for _ in range(2):
            await asyncio.to_thread(taskq_app.remind, "ann", "ann@example.com")
        (job,) = box.enqueued(taskq_app.mail)
        assert job.view.state is State.SCHEDULED
        box.advance("1h")
        await box.drain()
    assert world.mails == [("ann@example.com", "paid: your basket waits")]


@pytest.mark.slow  # the port's tests have more of our own names
@pytest.mark.usefixtures("new_world")
def test_the_original_does_the_same() -> None:
    pytest.importorskip("celery", reason="Celery is not installed: pip install celery")
    from celery import signals  # noqa: PLC0415
    from celery.contrib.testing.worker import start_worker  # noqa: PLC0415

    from examples.from_celery import celery_app  # noqa: PLC0415

    # Who listens here has Celery leave the logging of this process alone.
    signals.setup_logging.connect(_no_logging, weak=False)
    celery_app.app.conf.result_chord_retry_interval = 0.1
    celery_app.app.conf.broker_transport_options = {"polling_interval": 0.05}
    options = {"perform_ping_check": False, "pool": "solo", "loglevel": "ERROR"}
    with start_worker(celery_app.app, queues=["default", "mail"], **options):
        celery_app.buy(_ORDER)
        assert world.mailed.wait(_LIMIT_SECONDS)
    assert (world.charges, world.mails) == (_CHARGES, _MAILS)


# -- tutorials -------------------------------------------------------------------------------------

_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: tkinter without a screen: buttons are clicked twice at once, and the window closes in the midst
#: of the work; the second one stays until it is done.
_WINDOW: Final = """
import time
from pathlib import Path

widgets, timers = [], []

class Tk:
    def title(self, text):
        pass

    def after(self, milliseconds, call):
        timers.append((time.monotonic() + milliseconds / 1000, call))

    def mainloop(self):
        again = Path("closed")
        last = "smaller" if again.exists() else " of 20"
        again.touch()
        for widget in widgets * 2:
            widget.get("command", bool)()
        while not any(last in str(widget.get("text")) for widget in widgets):
            time.sleep(0.05)
            for timer in [timer for timer in timers if timer[0] <= time.monotonic()]:
                timers.remove(timer)
                timer[1]()

class Widget(dict):
    def __init__(self, root, **options):
        super().__init__(options)
        widgets.append(self)

    def pack(self, **how):
        pass

class ttk:
    Label = Progressbar = Button = Widget
"""
_FILE: Final = re.compile(r"# ([\w/]+\.py)( goes on)?\n")


@pytest.mark.long("the shop's 25 commands each start Python")
@pytest.mark.parametrize(
    "tutorial",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != TUTORIALS[0])) for name in TUTORIALS],
)
def test_a_tutorial_does_what_it_shows(tmp_path: Path, tutorial: str) -> None:
    """With ``-s`` it prints how long each command takes."""
    folder = ROOT / "examples" / tutorial
    (tmp_path / "tkinter.py").write_text(_WINDOW)
    port = str(free_port())
    took: list[tuple[float, str]] = []
    shell = Shell(tmp_path)
    try:
        for language, code in _FENCE.findall((folder / "README.md").read_text(encoding="utf-8")):
            if language == "python" and (named := _FILE.match(code)):
                with (tmp_path / named[1]).open("a" if named[2] else "w") as file:
                    file.write(code.partition("\n")[2] if named[2] else code)
                whole = (tmp_path / named[1]).read_text()
                assert (folder / named[1]).read_text().startswith(whole)
            if language == "console":
                for step in steps(f"```console\n{code}```"):
                    began = time.perf_counter()
                    shown = shell.run(step.typed.replace("8470", port))
                    shown = shown.replace(str(tmp_path), "/home/you")
                    took.append((time.perf_counter() - began, step.typed))
                    assert is_shown(shown, step.shown), f"$ {step.typed}\n{shown}"
    finally:
        shell.close()
    assert took
    print("\n".join(f"{seconds:6.2f} s  {line}" for seconds, line in took))  # noqa: T201
