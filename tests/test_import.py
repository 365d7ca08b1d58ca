"""Importing taskq is cheap, and loads only the modules in use."""

import importlib
import json
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import taskq
import taskq.errors
import taskq.views
from taskq import _native as native
from tests.programs import run_python

pytestmark = pytest.mark.usefixtures("own_settings")

SECONDS_MAX = 0.2
RSS_BYTES_MAX = 40 * 2**20
NAMES_MAX = 40

PROBE = """
import json, sys, time
before = time.process_time()
import taskq
seconds = time.process_time() - before
try:
    # Not getrusage: its peak includes what the test runner had before it started this process.
    lines = open("/proc/self/status").read().splitlines()
    rss = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
except FileNotFoundError:
    import resource
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "rss": rss, "modules": sorted(sys.modules)}))
"""


def test_a_cold_import_takes_under_200_ms_of_a_cpu_and_40_mib_and_no_slow_library() -> None:
    """Run a fresh interpreter without byte code."""
    report = json.loads(run_python("-B", "-c", PROBE, check=True).stdout)
    assert report["seconds"] < SECONDS_MAX
    assert report["rss"] < RSS_BYTES_MAX
    modules = set(report["modules"])
    slow = {"pydantic", "pydantic_core", "pydantic_settings", "asyncio", "click", "rich", "ctypes"}
    assert not modules & slow
    assert {name for name in modules if name.startswith("taskq")} == {"taskq"}


#: Modules of taskq, by package, that a program loads to declare an app and its tasks. The thread
#: that opens the log loads the other half of taskq.
APP = {
    "taskq": "_lazy telemetry",
    "taskq._native": "_plain" if native.is_on else "",
    "taskq.app": "app holder hooks schedules tasks",
    "taskq.calls": "arguments call habits loose naming serialization signature",
    "taskq.conditions": "breakers",
    "taskq.connection": "blocking connection handle logoptions tracing",
    "taskq.core": (
        "durations errors exceptions model parsing records retry schedules sources values"
    ),
    "taskq.core.folds": "moments",
    "taskq.log": "config requests",
    "taskq.log.format": "bodies codec options",
    "taskq.log.machine": "forks inside",
    "taskq.log.segments": "bodystore",
}
#: Debian's Python has the last one.
STANDARD = {*sys.stdlib_module_names, "sitecustomize"}
#: Packages of the standard library with slow imports: asyncio and its dependencies.
SLOW = {"asyncio", "concurrent", "logging", "selectors", "socket", "ssl", "subprocess"}
#: Modules that ``taskq --help`` loads.
HELP = {
    "taskq": "_lazy errors", "taskq.cli": "errors main", "taskq.core": "errors", "taskq.log": "",
    "taskq.log.machine": "forks",
}  # fmt: skip
#: Modules that a worker has not loaded when its first job runs, unless its app imports them.
LATE = (
    "importlib.metadata email pydantic pydantic_settings rich opentelemetry multiprocessing "
    "pydantic_core.core_schema ssl _ssl _hashlib asyncio.sslproto "
    "taskq.connection.settings taskq.flows.flow taskq.reading taskq.testing "
    "taskq.conditions.base taskq.conditions.network taskq_workers.children "
    "taskq_workers.process.guard "
    "taskq_workers.gates.gate difflib pickle random base64 "
    "taskq.log.read.flows taskq.log.read.selection taskq.log.read.diagnosis "
    "taskq.log.format.salvage "
    "anyio._core._sockets anyio.streams.tls platform"
)
LOADED = "import atexit, json, sys; atexit.register(lambda: print(json.dumps([*sys.modules])));"
WORKER_APP = """
import json, sys
from pathlib import Path
from taskq import TaskQ

app = TaskQ("data", durability="os", keep="1d", queues={"mail": {"compress": "none"}})

@app.task
async def tell(file: str) -> None:
    Path(file).write_text(json.dumps([*sys.modules]))
"""


def loaded(program: str) -> tuple[set[str], set[str]]:
    """Return modules of taskq that a program loads, and packages of others or slow ones."""
    done = run_python("-c", LOADED + program, check=True)
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    others = {name.partition(".")[0] for name in modules} - (STANDARD - SLOW)
    return {name for name in modules if name.partition(".")[0] == "taskq"}, {
        name for name in others if not name.startswith(("_", "taskq"))
    }


def pinned(rooms: dict[str, str]) -> set[str]:
    return {"taskq", *rooms, *(f"{room}.{name}" for room in rooms for name in rooms[room].split())}


def test_an_app_is_declared_with_these_modules_and_no_other_package() -> None:
    assert loaded("from taskq import TaskQ") == (pinned(APP), set())


def test_a_program_of_threads_enqueues_without_event_loop_and_upkeep(tmp_path: Path) -> None:
    program = (
        "from taskq import TaskQ\n"
        f"app = TaskQ({str(tmp_path / 'data')!r})\n"
        "def send(to: str) -> None: ...\n"
        "app.task(send, name='send').enqueue_sync('Ada')"
    )
    ours, others = loaded(program)
    assert "taskq.log.store.store" in ours
    assert not any(name.startswith("taskq.log.upkeep.") for name in ours)
    assert not others & (SLOW - {"concurrent", "logging"})


def test_help_and_looks_load_click_alone(tmp_path: Path) -> None:
    run = "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('taskq', run_name='__main__')"
    ours, others = loaded(run)
    assert ours == pinned(HELP)
    assert others == {"click"}
    with taskq.TaskQ(tmp_path) as app:
        app.enqueue_by_name_sync("mail.send", "Ada")
    for words in ("pipeline', '--help", f"stats', '{tmp_path}", f"ls', '{tmp_path}"):
        _, others = loaded(run.replace("--help", words))
        assert others - {"logging"} == {"click"}, words


def test_a_workers_first_job_waits_for_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "telling.py").write_text(WORKER_APP)
    report = tmp_path / "told.json"
    for command in (
        ("-c", f"from telling import tell; tell.enqueue_sync({str(report)!r})"),
        ("-m", "taskq", "worker", "telling:app", "--burst"),
    ):
        subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, check=True)
    modules = set(json.loads(report.read_text()))
    assert modules & set(LATE.split()) == set()
    packages = {name.partition(".")[0] for name in modules} - STANDARD
    # anyio looks for sniffio, which need not be installed.
    assert {name for name in packages if not name.startswith("_")} - {"sniffio"} == {
        *("pydantic_core", "click", "taskq", "taskq_start", "taskq_workers", "telling"),
        *("anyio", "typing_extensions"),
    }


def test_types_of_pydantic_core_can_be_imported_later() -> None:
    program = """
from taskq.calls.serialization import import_core
import_core()
import sys, pydantic_core
assert "pydantic_core.core_schema" not in sys.modules
assert not hasattr(pydantic_core, "nothing_of_the_kind")
from pydantic_core import CoreSchema, core_schema
assert pydantic_core.CoreSchema is CoreSchema is core_schema.CoreSchema
import pydantic_core.core_schema as again
assert again is core_schema is sys.modules["pydantic_core.core_schema"]
import pydantic
class Shop(pydantic.BaseModel):
    rooms: dict[str, list[int]] = {}
print(Shop.model_validate_json('{"rooms": {"a": [1]}}').rooms)
"""
    done = run_python("-c", program, check=True)
    assert done.stdout.strip() == "{'a': [1]}"


def test_tls_is_there_for_the_first_task_of_a_worker_that_asks_for_it() -> None:
    program = """
from taskq._lazy import import_without_tls
import_without_tls()
import anyio, asyncio, sys
assert not {"ssl", "_ssl", "asyncio.sslproto", "anyio._core._sockets", "platform"} & {*sys.modules}
import uuid
if hasattr(uuid, "platform"):  # newer ones ask sys on Linux
    assert uuid.platform.python_implementation() == sys.modules["platform"].python_implementation()
assert asyncio.sslproto.SSLProtocol is sys.modules["asyncio.sslproto"].SSLProtocol

async def main():
    server = await asyncio.start_server(lambda _, writer: writer.write(b"no TLS"), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    try:
        await asyncio.open_connection(*address, ssl=True)
    except OSError as error:
        import ssl
        print(type(error) is ssl.SSLError, error.reason)
    try:
        await anyio.connect_tcp(*address, tls=True, ssl_context=ssl.create_default_context())
    except OSError as error:
        print(type(error) is ssl.SSLError, error.reason)
    server.close()
    async with await anyio.create_udp_socket(local_host="127.0.0.1") as udp:
        await udp.sendto(b"datagram", "127.0.0.1", udp.extra(anyio.abc.SocketAttribute.local_port))
        print((await udp.receive())[0].decode())

asyncio.run(main())
"""
    done = run_python("-c", program, check=True)
    assert done.stdout.split() == [*["True", "WRONG_VERSION_NUMBER"] * 2, "datagram"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'taskq' has no attribute 'Taskq'"):
        _ = taskq.Taskq  # type: ignore[attr-defined]


def test_task_stays_a_decorator_whatever_is_imported() -> None:
    """A module taskq/task.py would replace the decorator as soon as any code imported it."""
    code = "import taskq.app.tasks, taskq.retry, taskq; from taskq import task; task(print)"
    done = run_python("-c", code + "; print(callable(task))")
    assert done.stdout.strip() == "True", done.stderr


FIRST_ENQUEUE = """
import asyncio, json, sys
from taskq import TaskQ

app = TaskQ(sys.argv[1])

@app.task
async def send(to: str, count: int = 0) -> int: ...

async def main() -> None:
    async with app:
        before = set(sys.modules)
        await send.enqueue("x")
        print(json.dumps(sorted(set(sys.modules) - before)))

asyncio.run(main())
"""


def test_the_first_enqueue_of_an_open_app_has_nothing_left_to_import(tmp_path: Path) -> None:
    """Slow imports happen at the opening, which a server does before its first request."""
    done = run_python("-c", FIRST_ENQUEUE, tmp_path / "data", check=True)
    late = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not late & {
        "taskq", "pydantic", "pydantic_core", "asyncio", "ctypes", "anyio", "typing_extensions",
    }  # fmt: skip


def test_the_public_face_fits_a_screen_and_errors_and_views_have_homes_of_their_own() -> None:
    """``dir(taskq)`` has only the exports, even after imports of submodules."""
    importlib.import_module("taskq.cli.main")
    assert dir(taskq) == sorted(taskq.__all__)
    assert len(taskq.__all__) <= NAMES_MAX
    for home in (taskq.errors, taskq.views):
        assert not set(home.__all__) & set(taskq.__all__)
        assert len(home.__all__) == len(set(home.__all__))
        for name in filter(lambda name: name[0].isupper(), home.__all__):
            with pytest.raises(AttributeError, match=f"{name} is in {home.__name__}: from"):
                getattr(taskq, name)
    assert {
        value.__module__ for value in vars(taskq.errors).values() if isinstance(value, type)
    } == {"taskq.errors"}


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """In the docstring each class is below its base class."""
    above: list[str] = []
    drawn: dict[str, str] = {}
    assert taskq.errors.__doc__ is not None
    for line in taskq.errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        above[depth:] = [match[2]]
        drawn[match[2]] = above[depth - 1] if depth else ""
    assert sorted(drawn) == taskq.errors.__all__
    for name, base in drawn.items():
        kinds = [kind.__name__ for kind in getattr(taskq.errors, name).__bases__]
        assert not base or kinds[0] == base, name


def test_a_traceback_and_a_pickle_name_an_error_where_it_is_imported_from() -> None:
    error = taskq.errors.JobFailed("abc-1", "no such host")
    text = traceback.format_exception_only(error)[-1]
    assert text.startswith("taskq.errors.JobFailed: ")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(back) is taskq.errors.JobFailed
    assert str(back) == str(error)


def test_whatever_is_imported_first_can_be(tmp_path: Path) -> None:
    """The import of a submodule first asks the package for the name, which must not load others."""
    names = sorted({*taskq._HOMES, "taskq.errors", "taskq.views"})
    program = (
        "import os, sys\n"
        f"for name in {names}:\n"
        "    child = os.fork()\n"
        "    if not child: __import__(name); os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]: sys.exit(name)\n"
    )
    done = run_python("-c", program, cwd=tmp_path)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("words", [
    ("sql", "SELECT 1", "-d", "data"), ("export", "data", "-o", "jobs.parquet"),
], ids=lambda words: words[0])  # fmt: skip
def test_commands_without_a_use_load_no_pandas(tmp_path: Path, words: tuple[str, ...]) -> None:
    program = f"""
import runpy, sys
from taskq import TaskQ
with TaskQ("data") as app:
    app.enqueue_by_name_sync("mail.send", "Ada")
sys.argv[1:] = {words!r}
try:
    runpy.run_module("taskq", run_name="__main__")
except SystemExit as end:
    assert not end.code, end
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
import pyarrow
assert pyarrow.table({{"a": [1]}}).to_pandas().a[0] == 1
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
