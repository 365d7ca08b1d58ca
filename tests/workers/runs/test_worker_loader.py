from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskq.app.app import default_app
from taskq.errors import UsageError
from taskq_workers.runs.loader import load_app


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Yield what a test imports is forgotten after it, and was not imported before."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    default_app.cache_clear()
    yield
    default_app.cache_clear()
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "") is None or "pytest" in str(
            getattr(sys.modules[name], "__file__", "")
        ):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> Path:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "jobs.py").write_text(
        "from taskq import TaskQ\n"
        "app = TaskQ('data')\n"
        "class holder:\n"
        "    inner = app\n"
        "@app.task\n"
        "async def send() -> None: ...\n"
    )
    (package / "two.py").write_text(
        "from taskq import TaskQ\nfirst = TaskQ('a')\nsecond = TaskQ('b')\n"
    )
    (package / "none.py").write_text("value = 1\n")
    (package / "bare.py").write_text(
        "from taskq import task\n@task\nasync def send() -> None: ...\n"
    )
    (package / "broken.py").write_text("def work():\n    return 1 / 0\n\nwork()\n")
    (package / "needs.py").write_text("import surely_not_installed\n")
    (package / "leaves.py").write_text("import sys\nsys.exit('bye')\n")
    (package / "typo.py").write_text("def (:\n")
    return tmp_path


def problem(target: str) -> str:
    with pytest.raises(UsageError) as info:
        load_app(target)
    return str(info.value)


@pytest.mark.parametrize("target", ["shop.jobs:app", "shop.jobs", "shop.jobs:holder.inner"])
def test_an_app_is_found_by_module_and_name_or_by_module_alone(target: str) -> None:
    app = load_app(target)
    assert list(app.tasks) == ["shop.jobs.send"]


def test_tasks_of_the_default_app_are_found_by_their_module(shop: Path) -> None:
    assert list(load_app("shop.bare").tasks) == ["shop.bare.send"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop.jobz:app", "there is no module 'shop.jobz': did you mean 'shop.jobs'?"),
        ("shap.jobs:app", "there is no module 'shap': did you mean 'shop'?"),
        ("shop.jobs.deep:app", "'shop.jobs' is a module and no package"),
        ("qqqqqq:app", "run this from the folder that holds it"),
        ("shop.jobs:ap", "has no 'ap': did you mean shop.jobs:app?"),
        ("shop.jobs:zzzzz", "has no 'zzzzz': did you mean shop.jobs:app?"),
        ("shop.jobs:send", "is of type AsyncTask and no TaskQ: give shop.jobs:app"),
        ("shop.two", "has 2 apps: say which shop.two:first or shop.two:second"),
        ("shop.none", "has no TaskQ: make one there"),
        ("shop.none:value", "is of type int and no TaskQ"),
        ("shop/jobs.py:app", "is a path: give the module's name, 'shop.jobs:app'"),
        ("shop.jobs:", "is not of the form module:app"),
        (":app", "is not of the form module:app"),
    ],
)
def test_a_wrong_target_is_one_line_that_says_what_to_type(target: str, words: str) -> None:
    text = problem(target)
    assert words in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop.broken", "return 1 / 0"),
        ("shop.broken", "ZeroDivisionError"),
        ("shop.needs", "import surely_not_installed"),
        ("shop.leaves", "SystemExit: bye"),
        ("shop.typo", "SyntaxError"),
    ],
)
def test_an_error_within_the_module_shows_its_own_lines_alone(target: str, words: str) -> None:
    text = problem(target)
    assert text.startswith(f"importing '{target}' failed:")
    assert words in text
    assert "importlib" not in text
    assert "taskq_workers" not in text


def test_what_taskq_refuses_is_told_with_the_line_that_asked_for_it(shop: Path) -> None:
    (shop / "shop" / "rate.py").write_text(
        "from taskq import TaskQ\napp = TaskQ('data')\n@app.task(rate='10')\ndef send(): ...\n"
    )
    with pytest.raises(UsageError) as caught:
        load_app("shop.rate:app")
    head, where, *_, last = str(caught.value).splitlines()
    assert head == "importing 'shop.rate' failed:"
    assert where.endswith('rate.py", line 3, in <module>')
    assert last.startswith("UsageError: rate is '10': give text such as")
    assert str(caught.value).count("File ") == 1
