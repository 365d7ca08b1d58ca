"""Modules of an app: found by name, included by its workers alone, and reloaded while they run."""

import asyncio
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskq import State, TaskQ
from taskq.app.app import default_app
from taskq.cli.main import main
from taskq.conditions import condition
from taskq.errors import UsageError
from taskq_workers.runs.loader import load_app, modules_with_tasks
from tests.programs import run_python, run_taskq

_APP = "from taskq import TaskQ\napp = TaskQ('data', include=['proj.tasks'])\n"
_TASKS = """
from proj.app import app

@app.task
async def send() -> int:
    return 7

@app.task(runs_in="process")
def count() -> int:
    return 8
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes the modules of a package; with none given, an app and its tasks."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    default_app.cache_clear()

    def write_modules(**modules: str) -> None:
        (tmp_path / "proj").mkdir()
        (tmp_path / "proj" / "__init__.py").write_text("")
        for name, text in (modules or {"app": _APP, "tasks": _TASKS}).items():
            (tmp_path / "proj" / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write_modules
    default_app.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "proj"]:
        del sys.modules[name]


def worker(*words: str) -> Result:
    return CliRunner().invoke(main, ["worker", *words])


def test_modules_that_import_their_app_are_imported_once_that_is_whole(
    write: Callable[..., None],
) -> None:
    write()
    app = importlib.import_module("proj.app").app
    assert not app.tasks
    assert set(load_app("proj.app").tasks) == {"proj.tasks.send", "proj.tasks.count"}
    assert load_app("proj.app:app") is app


def test_a_file_with_the_name_of_a_loaded_module_is_named_as_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for own in ("queue.py", "taskq/__init__.py"):
        (tmp_path / own).parent.mkdir(exist_ok=True)
        (tmp_path / own).touch()
        hidden = re.escape(f"{tmp_path / own} is hidden by ")
        with pytest.raises(UsageError, match=f"{hidden}.*: give yours"):
            load_app(f"{own.partition('/')[0].removesuffix('.py')}:app")


def test_modules_named_on_the_command_line_come_on_top_also_in_children(
    write: Callable[..., None],
) -> None:
    write(
        app="from taskq import TaskQ\napp = TaskQ('data')\n",
        tasks=_TASKS,
        # A child's lent values may come from any module.
        more="from taskq import Inject, injected\n"
        "from collections.abc import AsyncIterator\nfrom proj.app import app\n"
        "class Ten(int): pass\n"
        "@app.lifespan\n"
        "async def ten(app) -> AsyncIterator[Ten]:\n    yield Ten(10)\n"
        "@app.task(runs_in='process')\n"
        "def tens(ten: Inject[Ten] = injected()) -> int:\n    return ten\n",
    )
    with TaskQ("data") as app:
        jobs = [app.enqueue_by_name_sync(f"proj.{name}") for name in ("tasks.count", "more.tens")]
        for processes in ((), ("--processes", "1")):
            again = app.enqueue_by_name_sync("proj.tasks.send")
            include = ("-I", "proj.tasks", "--include", "proj.more")
            done = run_taskq("worker", "proj.app", *include, "--burst", *processes)
            # On a slow machine a line may warn of the event loop.
            errors = [line for line in done.stderr.splitlines() if "the event loop st" not in line]
            assert (done.returncode, errors) == (0, [])
            assert again.result_sync(0) == 7
        assert jobs[0].result_sync(0) == 8
        assert jobs[1].result_sync(0) == 10


def test_a_script_that_is_its_apps_module_is_not_imported_a_second_time(
    write: Callable[..., None],
) -> None:
    write(
        app=_APP + "import asyncio, sys\n"
        "async def main():\n"
        "    async with app.worker(): print(*sorted(app.tasks))\n"
        "if __name__ == '__main__': asyncio.run(main())\n"
        "print(__name__)\n",
        tasks=_TASKS,
    )
    done = run_python("-m", "proj.app")
    assert done.stderr == ""
    assert done.stdout == "proj.tasks.count proj.tasks.send\n__main__\n"


def test_a_script_that_is_imported_again_gets_advice_to_move_its_app(
    write: Callable[..., None],
) -> None:
    write(
        app=_APP + "if __name__ == '__main__':\n"
        "    import proj.tasks\n"
        "    app.run_worker(burst=True)\n",
        tasks=_TASKS,
    )
    done = run_python("-m", "proj.app")
    assert done.stderr.splitlines()[-1].endswith(
        "they import proj.app, which runs as the program here, and so there are two of it; put the "
        "app into a module of its own"
    )


def test_tasks_of_another_app_are_refused_instead_of_waiting_for_ever(
    write: Callable[..., None],
) -> None:
    write(app=_APP, tasks=_TASKS)
    app = TaskQ("data", include=["proj.tasks"])
    words = r"'proj\.tasks' .* with another TaskQ, none with this"
    with pytest.raises(UsageError, match=words), app.worker_thread():
        pass


_BARE = "from taskq import task\n@task\nasync def send() -> None: ...\n"
_OTHERS = {
    "holds": f"{_APP}class holder:\n    inner = app\n@app.task\nasync def send() -> None: ...\n",
    "bare": _BARE,
    "two": "from taskq import TaskQ\nfirst = TaskQ('a')\nsecond = TaskQ('b')\n",
    "broken": "def work():\n    return 1 / 0\n\nwork()\n",
    "needs": "import surely_not_installed\n",
    "leaves": "import sys\nsys.exit('bye')\n",
    "typo": "def (:\n",
    "rate": "from taskq import TaskQ\napp = TaskQ('data')\n@app.task(rate='10')\ndef send(): ...\n",
}


@pytest.mark.parametrize("target", ["holds:app", "holds", "holds:holder.inner", "bare"])
def test_an_app_is_found_by_module_and_name_or_by_module_alone(
    write: Callable[..., None], target: str
) -> None:
    write(**_OTHERS, tasks="")
    assert list(load_app(f"proj.{target}").tasks) == [f"proj.{target.partition(':')[0]}.send"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("app -I proj.taskz", ["there is no module 'proj.taskz': did you mean 'proj.tasks'?"]),
        ("app -I proj/tasks.py", ["include: 'proj/tasks.py' is no module's name: give it as"]),
        ("app -I proj.typo", ["importing 'proj.typo' failed:", "SyntaxError"]),
        ("two", ["module 'proj.two' has 2 apps: say which proj.two:first or proj.two:second"]),
        ("broken", ["importing 'proj.broken' failed:", "return 1 / 0", "ZeroDivisionError"]),
        ("needs", ["importing 'proj.needs' failed:", "import surely_not_installed"]),
        ("leaves", ["importing 'proj.leaves' failed:", "SystemExit: bye"]),
        ("rate", ["", 'rate.py", line 3, in <module>', "UsageError: rate is '10': give text such"]),
    ],
)
def test_a_broken_module_is_reported_with_its_own_lines_alone(
    write: Callable[..., None], words: str, parts: list[str]
) -> None:
    write(app=_APP, tasks=_TASKS, **_OTHERS)
    done = worker(*f"proj.{words}".split())
    assert done.exit_code == 2
    assert done.stderr.startswith(f"taskq: {parts[0]}")
    assert all(part in done.stderr for part in parts)
    assert not {"importlib", "taskq_workers"} & set(re.findall(r"\w+", done.stderr))
    assert not Path("data").exists()


def test_a_worker_without_a_task_ends_at_once_and_names_the_modules_that_have_some(
    write: Callable[..., None],
) -> None:
    write(
        app="from taskq import TaskQ\napp = TaskQ('data')\n",
        tasks=_TASKS,
        mail="from .app import app\n@app.task(queue='mail')\nasync def send(): ...\n",
        views="from .app import app\n@app.route('/')\ndef index(): ...\n",
        test_mail="from .app import app\n@app.task\nasync def send(): ...\n",
        broken="from .app import app\n@app.task\nasync def (",
    )
    ran = Path("proj/tasks.py").write_text(f"{_TASKS}\nopen('imported', 'w')\n")
    assert ran
    done = worker("proj.app")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == (
        "taskq: proj.app has an app, but no task is registered with it: proj.mail and proj.tasks "
        'define some. Write TaskQ(include=["proj.mail", "proj.tasks"]), or: '
        f"taskq worker proj.app -I proj.mail -I proj.tasks -d {Path('data').absolute()}\n"
    )
    assert not Path("imported").exists()
    assert not Path("data").exists()


def test_a_worker_without_a_task_anywhere_says_how_one_is_made(write: Callable[..., None]) -> None:
    write(app="from taskq import TaskQ\napp = TaskQ('data')\n")
    done = worker("proj.app:app", "--burst")
    assert done.exit_code == 2
    assert done.stderr == (
        "taskq: proj.app:app has an app, but no task is registered with it: decorate a function "
        "with @app.task, there or in a module that is named with -I MODULE\n"
    )


def test_modules_beside_a_plain_module_and_in_packages_below_are_found_too(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    for name in ("mailer/jobs", "mailer/__init__", "bills", ".hidden/x", "venv/lib/y", "plain"):
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from taskq import task as job\n@job\nasync def f(): ...\n")
    (folder / "plain.py").write_text("def task(): ...\n@task\ndef f(): ...\n")
    (folder / "venv/pyvenv.cfg").write_text("")
    assert modules_with_tasks(folder, "") == ["bills", "mailer", "mailer.jobs"]
    assert modules_with_tasks(folder / "mailer", "mailer") == ["mailer", "mailer.jobs"]


SECONDS = 60
SCRIPT = """
import asyncio
from taskq import TaskQ

app = TaskQ("data")

@app.task(runs_in="process")
def double(number: int) -> int:
    return 2 * number

async def main() -> None:
    async with app, app.worker(process_limit=1):
        await double.enqueue(1)
        async with app.stream(kinds=["released"]) as records:
            async for record in records:
                print(record.reason)
                break

asyncio.run(main())
"""


def test_a_script_without_a_main_guard_gets_advice_and_no_workers_in_children(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    ended = run_python("script.py", cwd=tmp_path, timeout=SECONDS, check=True)
    errors = [
        line for line in ended.stdout.splitlines() if line.startswith("a child process cannot")
    ]
    assert len(errors) == 1
    assert "a child process cannot import script: UsageError: a worker is started" in errors[0]
    assert 'if __name__ == "__main__":' in errors[0]
    assert 'if __name__ == "__main__":' in ended.stderr  # the worker says it, too


RESULT_SECONDS = 30
_NUMBERS = itertools.count()


class Notebook:
    """Cells as IPython runs them: each compiled under a name of its own, all in one module."""

    def __init__(self, app: TaskQ) -> None:
        self.module = ModuleType("__main__")
        self.names: dict[str, Any] = vars(self.module)
        self.names["app"] = app

    def run(self, cell: str) -> None:
        code = compile(cell, f"<ipython-input-{next(_NUMBERS)}>", "exec")
        exec(code, self.names)  # noqa: S102 - our own text

    async def result(self, name: str = "double", value: int = 2) -> Any:
        job = await self.names[name].enqueue(value)
        return await job.result(timeout=RESULT_SECONDS)


@pytest.fixture
def notebook(app: TaskQ, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    book = Notebook(app)
    monkeypatch.setitem(sys.modules, "__main__", book.module)
    return book


@pytest.fixture
def write_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(str(tmp_path))
    # Two versions of one second and length would share their compiled form.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # for child processes

    def load(text: str) -> ModuleType:
        (tmp_path / "renewed_jobs.py").write_text(text)
        importlib.invalidate_caches()
        known = sys.modules.get("renewed_jobs")
        return importlib.reload(known) if known else importlib.import_module("renewed_jobs")

    yield load
    sys.modules.pop("renewed_jobs", None)


def cell(body: str, options: str = "") -> str:
    return f"@app.task{options}\nasync def double(value: int) -> int:\n    return {body}\n"


async def test_a_running_worker_takes_the_new_form_of_a_cell_from_its_next_job_on(
    app: TaskQ, notebook: Notebook
) -> None:
    """Its conditions, too, hold from then on."""
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def is_open() -> bool:
        loop.call_soon_threadsafe(asked.set)
        return False

    notebook.names["is_open"] = condition(is_open, name="the shop is open")
    notebook.run(cell("value * 2"))
    async with app, app.worker():
        assert await notebook.result() == 4
        notebook.run("# it has moved\n\n" + cell("value * 20"))
        assert await notebook.result() == 40
        # An idle worker waits for work with the names that it knew, and asks anew.
        notebook.run(cell("value * 3").replace("double", "triple"))
        assert await notebook.result("triple") == 6
        notebook.run(cell("value", "(requires=[is_open])"))
        job = await notebook.names["double"].enqueue(3)
        async with asyncio.timeout(RESULT_SECONDS):
            await asked.wait()
        assert await job.status() is State.READY
        notebook.run(cell("value"))
        assert await job.result(timeout=RESULT_SECONDS) == 3


async def test_a_reloaded_module_replaces_its_tasks_though_lines_have_moved(
    app: TaskQ, write_jobs: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "shared", app, raising=False)
    head = f"from {__name__} import shared as app\n"
    module = write_jobs(head + cell("value * 2", "(aliases=['twice'])"))
    async with app, app.worker():
        assert await (await module.double.enqueue(2)).result(timeout=RESULT_SECONDS) == 4
        module = write_jobs(head + "\n\n\n" + cell("value + 1"))
        assert await (await module.double.enqueue(2)).result(timeout=RESULT_SECONDS) == 3
        # Jobs of its earlier name may wait still.
        job = await app.enqueue_by_name("twice", 2)
        assert await job.result(timeout=RESULT_SECONDS) == 3


async def test_child_processes_import_a_reloaded_module_anew(
    tmp_path: Path, write_jobs: Callable[[str], ModuleType]
) -> None:
    (tmp_path / "renewed_app.py").write_text("from taskq import TaskQ\napp = TaskQ('data')\n")
    head = "from renewed_app import app\n"
    text = head + cell("value * 2", "(runs_in='process')")
    module = write_jobs(text)
    app = module.app
    app.data_dir = tmp_path / "data"
    try:
        async with app, app.worker(process_limit=1):
            assert await (await module.double.enqueue(2)).result(timeout=RESULT_SECONDS) == 4
            module = write_jobs(text.replace("* 2", "* 7"))
            assert await (await module.double.enqueue(2)).result(timeout=RESULT_SECONDS) == 14
    finally:
        sys.modules.pop("renewed_app", None)


def test_what_stands_twice_or_in_another_module_is_a_mistake(
    app: TaskQ, notebook: Notebook, write_jobs: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.modules[__name__], "shared", app, raising=False)
    head = f"from {__name__} import shared as app\n"
    with pytest.raises(UsageError, match=r"'renewed_jobs\.double' is taken"):
        write_jobs(head + cell("1") + cell("2"))
    module = write_jobs("async def double(value: int) -> int:\n    return 0\n")
    notebook.run(cell("value", "(name='double')"))
    with pytest.raises(UsageError, match=r"'double' is taken by __main__\.double"):
        app.task(name="double")(module.double)


def test_a_cell_that_declares_all_there_is_may_run_again(app: TaskQ, notebook: Notebook) -> None:
    """Schedules of tasks and of calls, hooks, lifespans and breakers: each is there once."""
    text = (
        "@app.every('{n}m')\n"
        + cell("value")
        + "@app.on_dead\ndef tell(letter): ...\n"
        + "app.on_dead(lambda letter: 1)\n"
        + "app.on_dead(lambda letter: 2)\n"
        + "@app.lifespan\nasync def resource():\n    yield {n}\n"
        + "app.schedule('later', double.call(1), every='{n}m')\n"
        + "app.breaker('mail', failures={n}, is_failure=lambda error: True)\n"
    )
    for number in (1, 2, 2):
        notebook.run(text.replace("{n}", str(number)))
    hooks = [hook for hook, _ in app.hooks.deaths]
    assert [hook.__name__ for hook in hooks] == ["tell", "<lambda>", "<lambda>"]
    assert hooks[0] is notebook.names["tell"]
    assert [hook(None) for hook in hooks[1:]] == [1, 2]  # type: ignore[arg-type]
    assert len(app.hooks.lifespans) == 1
    assert {schedule.rule.rule for schedule in app.hooks.schedules.all.values()} == {
        b"every 120000000000"
    }
    assert app.hooks.breakers["mail"].failures == 2
