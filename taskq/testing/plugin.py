"""The pytest plugin: found through the entry point ``pytest11``, it costs nothing until used."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskq.app import TaskQ
    from taskq.testing.sandbox import Sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make ``taskq_app`` an ini option."""
    parser.addini(
        "taskq_app",
        "The app that the fixture taskq_app moves into a sandbox, such as shop.jobs:app.",
        default="",
    )


@pytest.fixture
def taskq_sandbox(pytestconfig: pytest.Config) -> Iterator[Sandbox]:
    """An app whose log is in memory and whose clock stands still: see ``taskq.testing.Sandbox``.

    It is the app named by the ini option ``taskq_app``, or a new one without tasks.
    """
    from taskq import TaskQ  # noqa: PLC0415 - pytest loads this module in every run
    from taskq.testing.sandbox import Sandbox  # noqa: PLC0415

    target = str(pytestconfig.getini("taskq_app"))
    app = _load(target) if target else TaskQ("unused-by-tests")
    with Sandbox(app) as box:
        yield box


@pytest.fixture
def taskq_app(taskq_sandbox: Sandbox) -> TaskQ:
    """The app of ``taskq_sandbox``."""
    return taskq_sandbox.app


def _load(target: str) -> TaskQ:
    import importlib  # noqa: PLC0415

    from taskq import TaskQ  # noqa: PLC0415

    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        app = getattr(importlib.import_module(module), name or "app")
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"taskq_app = {target}: {error}") from error
    if not isinstance(app, TaskQ):
        raise pytest.UsageError(f"taskq_app = {target}: it is no TaskQ but {app!r:.60}")
    return app
