"""Importing taskq is cheap, and brings nothing along that was not asked for."""

from __future__ import annotations

import importlib
import json
import pickle
import re
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import taskq
import taskq.errors
import taskq.views

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_settings")

SECONDS_MAX = 0.2
RSS_BYTES_MAX = 40 * 2**20
NAMES_MAX = 40

PROBE = """
import json, sys, time
before = time.perf_counter()
import taskq
seconds = time.perf_counter() - before
try:
    # Not getrusage: its peak includes what the test runner had before it started this process.
    lines = open("/proc/self/status").read().splitlines()
    rss = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
except FileNotFoundError:
    import resource
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "rss": rss, "modules": sorted(sys.modules)}))
"""


def probe() -> dict[str, Any]:
    """What a fresh interpreter tells after ``import taskq``, without its byte code cached."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROBE], capture_output=True, text=True, check=True
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_a_cold_import_takes_under_200_ms_and_40_mib() -> None:
    # The quickest of three: what else the machine does is not the import's doing.
    told = [probe() for _ in range(3)]
    assert min(one["seconds"] for one in told) < SECONDS_MAX
    assert max(one["rss"] for one in told) < RSS_BYTES_MAX


def test_an_import_brings_no_slow_library_along() -> None:
    modules = set(probe()["modules"])
    slow = {"pydantic", "pydantic_core", "pydantic_settings", "asyncio", "click", "rich", "ctypes"}
    assert not modules & slow
    assert {name for name in modules if name.startswith("taskq")} == {"taskq"}


def test_an_app_is_declared_without_the_code_that_opens_and_reads_a_log() -> None:
    """Half of what taskq is made of waits for the thread that opens the log."""
    code = "import sys; from taskq import TaskQ; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {name for name in done.stdout.split() if name.startswith("taskq.")}
    late = ("store", "commit", "decide", "journal", "state", "read", "upkeep", "inbox")
    assert not {
        name for name in modules if name.startswith(tuple(f"taskq.log.{one}" for one in late))
    }
    assert not {name.split(".")[1] for name in modules} & {"cli", "reading", "testing"}
    assert not modules & {"taskq.connection.settings", "taskq.core.views", "taskq.conditions.base"}


@pytest.mark.parametrize("name", taskq.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(taskq, name) is not None
    assert name in dir(taskq)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'taskq' has no attribute 'Taskq'"):
        _ = taskq.Taskq  # type: ignore[attr-defined]


def test_task_stays_a_decorator_whatever_is_imported() -> None:
    """A module taskq/task.py would replace it on the package, as soon as anything imported it."""
    code = "import taskq.app.tasks, taskq.retry, taskq; from taskq import task; task(print)"
    done = subprocess.run(
        [sys.executable, "-c", code + "; print(callable(task))"],
        capture_output=True,
        text=True,
        check=False,
    )
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
    """Slow imports fall on the opening, which a server does before its first user comes."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_ENQUEUE, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=True,
    )
    late = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not late & {
        "taskq",
        "pydantic",
        "pydantic_core",
        "asyncio",
        "ctypes",
        "typing_extensions",
    }


def test_the_public_face_fits_a_screen_and_errors_and_views_have_homes_of_their_own() -> None:
    """``dir(taskq)`` holds what it exports, whatever submodules were imported."""
    importlib.import_module("taskq.cli.main")
    assert dir(taskq) == sorted(taskq.__all__)
    assert len(taskq.__all__) <= NAMES_MAX
    for home in (taskq.errors, taskq.views):
        assert not set(home.__all__) & set(taskq.__all__)
        assert home.__all__ == sorted(set(home.__all__))
        for name in home.__all__:
            with pytest.raises(AttributeError, match=f"{name} is in {home.__name__}: from"):
                getattr(taskq, name)
    assert {one.__module__ for one in vars(taskq.errors).values() if isinstance(one, type)} == {
        "taskq.errors"
    }


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """Each line of the docstring stands below the class that it is made of."""
    above: list[str] = []
    drawn: dict[str, str] = {}
    assert taskq.errors.__doc__ is not None
    for line in taskq.errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+)", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        above[depth:] = [found[2]]
        drawn[found[2]] = above[depth - 1] if depth else ""
    assert sorted(drawn) == taskq.errors.__all__
    for name, base in drawn.items():
        kinds = [one.__name__ for one in getattr(taskq.errors, name).__bases__]
        assert not base or kinds[0] == base, name


def test_a_traceback_and_a_pickle_name_an_error_where_it_is_imported_from() -> None:
    error = taskq.errors.JobFailed("abc-1", "no such host")
    text = traceback.format_exception_only(error)[-1]
    assert text.startswith("taskq.errors.JobFailed: ")
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(back) is taskq.errors.JobFailed
    assert str(back) == str(error)


def test_whatever_is_imported_first_can_be(tmp_path: Path) -> None:
    """A submodule that is on its way is asked of the package first, which must not load others."""
    names = sorted({*taskq._HOMES.values(), "taskq.errors", "taskq.views"})
    program = (
        "import os, sys\n"
        f"for name in {names}:\n"
        "    child = os.fork()\n"
        "    if not child: __import__(name); os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]: sys.exit(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
