"""The pytest plugin, found by the entry point ``pytest11``; it costs nothing until used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from taskq import TaskQ
    from taskq.testing.sandbox import Sandbox

_NO_APP: Final = """\
taskq does not know which app is tested: name it in pytest's settings as `taskq worker` takes it,

    [tool.pytest.ini_options]        (pyproject.toml; [pytest] in pytest.ini)
    taskq_app = "shop.jobs:app"

or leave the fixture out and write: with Sandbox(app) as box: ..."""
_STRICT: Final = {"": False, "warn": False, "false": False, "error": True, "true": True}

#: configurations of running sessions, the innermost last: a plugin's test may run a session
_configs: Final[list[pytest.Config]] = []


class RealLogWarning(UserWarning):
    """A test opened a log that is not temporary: perhaps the production log."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini options ``taskq_app`` and ``taskq_strict``."""
    parser.addini(
        "taskq_app",
        "The app that the fixtures move into a sandbox, as `taskq worker` takes it: shop.jobs:app.",
        default="",
    )
    parser.addini(
        "taskq_strict",
        "How to report a real log that a test opens outside a sandbox: warn (default) or error.",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check from now on which logs are opened.

    Raises:
        pytest.UsageError: ``taskq_strict`` is neither "warn" nor "error".
    """
    strict = _word(config)
    if strict not in _STRICT:
        raise pytest.UsageError(f"taskq_strict = {strict}: it is warn or error")
    _configs.append(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop checking."""
    if config in _configs:
        _configs.remove(config)


def on_open(path: str, caller: Callable[[], FrameType]) -> None:
    """Report a log that was not made for the test, before it is opened.

    Logs in pytest's own temporary directory (``tmp_path``) are allowed.

    Args:
        path: absolute path of the log's directory.
        caller: returns the frame of the program that opens it.

    Raises:
        UsageError: ``taskq_strict = error``, and the log is not temporary.
    """
    if not _configs or _is_temporary(path):
        return
    message = (
        f"a test opens the real log {path}, whose jobs a worker may run: put it into a "
        f"sandbox, with Sandbox(app) as box (from taskq.testing) or the fixture taskq_sandbox, or "
        f"give it a directory in tmp_path"
    )
    if _STRICT[_word(_configs[-1])]:
        from taskq.errors import UsageError  # noqa: PLC0415 - pytest loads this in every run

        raise UsageError(f"{message} (taskq_strict = error)")
    frame = caller()
    warnings.warn_explicit(
        f"{message} (taskq_strict = error refuses it)",
        RealLogWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


@pytest.fixture
def taskq_sandbox(pytestconfig: pytest.Config) -> Iterator[Sandbox]:
    """Yield a sandbox of the app in the ini option ``taskq_app``, with a stopped clock.

    See ``taskq.testing.Sandbox``.
    """
    target = str(pytestconfig.getini("taskq_app"))
    if not target:
        pytest.fail(_NO_APP, pytrace=False)
    from taskq.testing.sandbox import Sandbox  # noqa: PLC0415 - pytest loads this in every run

    with Sandbox(_load(target)) as box:
        yield box


@pytest.fixture
def taskq_app(taskq_sandbox: Sandbox) -> TaskQ:
    """Return the app of ``taskq_sandbox``."""
    return taskq_sandbox.app


def _word(config: pytest.Config) -> str:
    return str(config.getini("taskq_strict")).lower()


def _is_temporary(path: str) -> bool:
    """Return whether a directory is removed with its test."""
    from taskq.testing.sandbox import PREFIX  # noqa: PLC0415 - a log is being opened anyway

    config = _configs[-1]
    if Path(path).name.startswith(PREFIX):
        return True
    factory = getattr(config, "_tmp_path_factory", None)  # pytest has no public function for it
    if factory is None:
        return False
    base: Path = factory.getbasetemp()
    if hasattr(config, "workerinput"):
        base = base.parent  # the processes of pytest-xdist share its parent
    return Path(path).resolve().is_relative_to(base)


def _load(target: str) -> TaskQ:
    import taskq.extras as extras  # noqa: PLC0415 - pytest loads this module in every run
    from taskq.errors import UsageError  # noqa: PLC0415 - pytest loads this module in every run

    try:
        app: TaskQ = extras.workers().load_app(target)
    except UsageError as error:
        message = f"taskq_app = {target}: {error}"
        raise pytest.fail.Exception(message, pytrace=False) from None
    return app
