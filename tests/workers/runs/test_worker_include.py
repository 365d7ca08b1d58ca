"""Modules that an app includes are imported by its workers, and by nobody before."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from taskq import TaskQ
from taskq.cli.main import main
from taskq.errors import UsageError
from taskq_workers.runs.guards import importing
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


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "proj"]:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., None]:
    """Writes the modules of a package; with none given, an app and its tasks."""

    def write_modules(**modules: str) -> None:
        (tmp_path / "proj").mkdir()
        (tmp_path / "proj" / "__init__.py").write_text("")
        for name, text in (modules or {"app": _APP, "tasks": _TASKS}).items():
            (tmp_path / "proj" / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    return write_modules


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return run_python(*words)


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


async def test_a_worker_inside_a_program_imports_them_as_it_starts(
    write: Callable[..., None],
) -> None:
    write()
    app: TaskQ = importlib.import_module("proj.app").app
    async with app:
        job = await app.enqueue_by_name("proj.tasks.send")
        async with app.worker():
            assert await job.result(timeout=20) == 7


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
            assert (done.returncode, done.stderr) == (0, "")
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
    done = run("-m", "proj.app")
    assert done.stderr == ""
    assert done.stdout == "proj.tasks.count proj.tasks.send\n__main__\n"


def test_a_script_whose_modules_have_imported_it_again_is_told_to_part_with_its_app(
    write: Callable[..., None],
) -> None:
    write(
        app=_APP + "if __name__ == '__main__':\n"
        "    import proj.tasks\n"
        "    app.run_worker(burst=True)\n",
        tasks=_TASKS,
    )
    done = run("-m", "proj.app")
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


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("proj.tasks", r"include is one name, 'proj\.tasks': write include=\['proj\.tasks'\]"),
        (["proj/tasks.py"], r"include: 'proj/tasks\.py' is no module's name: give it as it is"),
        ([".tasks"], r"include: '\.tasks' is no module's name"),
        ([b"tasks"], r"include: b'tasks' is no module's name"),
        ([""], r"include: '' is no module's name"),
    ],
)
def test_what_is_no_list_of_modules_is_refused_where_it_is_written(
    include: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        TaskQ("data", include=include)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("proj.taskz",), "taskq: there is no module 'proj.taskz': did you mean 'proj.tasks'?\n"),
        (("proj/tasks.py",), "taskq: include: 'proj/tasks.py' is no module's name: give it as"),
        (("proj.bad",), "taskq: importing 'proj.bad' failed:\n"),
    ],
)
def test_a_module_that_cannot_be_included_is_told_as_the_app_itself_would_be(
    write: Callable[..., None], names: tuple[str, ...], words: str
) -> None:
    write(app=_APP, tasks=_TASKS, bad="1 / 0\n")
    done = worker("proj.app", *(w for name in names for w in ("-I", name)))
    assert done.exit_code == 2
    assert done.stderr.startswith(words)
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


def test_a_worker_without_a_task_anywhere_says_how_one_is_made(
    write: Callable[..., None],
) -> None:
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


def test_a_script_without_a_main_guard_is_told_so_and_starts_no_workers_in_its_children(
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


def test_no_worker_is_made_while_a_child_imports_and_one_may_be_afterwards(tmp_path: Path) -> None:
    app = TaskQ(tmp_path)
    with importing(), pytest.raises(UsageError, match="put it under"):
        app.worker()
    app.worker()
