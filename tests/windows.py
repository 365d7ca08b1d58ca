"""A pytest plugin for Windows (``-p tests.windows``): skip tests that need POSIX, by name.

A test module that imports a POSIX module is skipped, and so is a test whose own code uses a POSIX
name. If the product uses such a name, the test fails. The summary counts each reason.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from taskq import JobHandle
from taskq.log.machine import windows
from tests import effort

_ROOT: Final = f"{Path(__file__).parents[1]}{os.sep}"
_MODULES: Final = re.compile(r"^\s*(?:import|from) (termios|pty|tty)\b", re.MULTILINE)
#: Modules replaced by stubs, which skip a test that calls or replaces one of their names.
_STUBS: Final = ("fcntl", "pwd", "grp", "resource", "taskq.log.machine.posix")
_LACKING: Final = re.compile(
    r"module '(?:os|signal|select|socket|time)'(?: \(\w+\)>)? has no attribute '(\w+)'"
    r"|'module' object at (?:os|signal|select|socket|time) has no attribute '(\w+)'"
    # numpy calls a function that Wine 8's C library lacks; duckdb is not worth its installation.
    r"|needs the package (numpy|duckdb)"
    r"|No module named '(fcntl|pwd|grp|resource|termios|pty|tty)'"
    r"|Path not found: '\\\\(dev|proc)\\"
    r"|\[WinError 2\] (File not found)$"
)
_SKIPPED: Final = pytest.StashKey[Any]()
#: Factor of limits under Wine, where a process takes more than a second to start.
_STRETCH: Final = 5
#: Names of time limits in test modules.
_LIMITS: Final = ("SECONDS", "_SECONDS", "RESULT_SECONDS")
#: Time for a test to end after its limit, once its processes are killed.
_GRACE_SECONDS: Final = 60


class _Posix(pytest.Module):
    def collect(self) -> Any:
        match = _MODULES.search(self.path.read_text(encoding="utf-8"))
        assert match is not None  # the reason comes from this pattern
        pytest.skip(f"imports {match[1]}", allow_module_level=True)


class _Lacking:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return _Lacking(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> Any:
        pytest.skip(f"asks for {self._name}")

    __enter__ = __index__ = __or__ = __ror__ = __call__


class _Stub(ModuleType):
    __file__ = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Lacking(f"{self.__name__}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        pytest.skip(f"replaces {self.__name__}.{name}")


_symlink: Final = Path.symlink_to
_result: Final = JobHandle.result


async def _wait(job: Any, timeout: Any = None) -> Any:  # noqa: ASYNC109 - the original's signature
    is_number = isinstance(timeout, int | float)
    return await _result(job, timeout * _STRETCH if is_number else timeout)


def _stretched(limit: Any) -> Any:
    """Stretch a limit of ``tests.effort`` for Wine."""

    @functools.wraps(limit)
    def longer(*args: Any, **options: Any) -> Any:
        given = inspect.signature(limit).bind(*args, **options)
        given.apply_defaults()
        given.arguments["seconds"] *= _STRETCH
        return limit(*given.args, **given.kwargs)

    return longer


def _link(path: Path, *args: Any, **options: Any) -> None:
    _symlink(path, *args, **options)
    # pytest itself makes links, too.
    if sys._getframe(1).f_code.co_filename.startswith(_ROOT) and not path.is_symlink():
        pytest.skip("Wine shows no links")


_HANDLE: Final = ctypes.c_void_p
_create_job: Final = windows._function("CreateJobObjectW", _HANDLE, _HANDLE, ctypes.c_wchar_p)
_assign: Final = windows._function("AssignProcessToJobObject", ctypes.c_int, _HANDLE, _HANDLE)
_end_all: Final = windows._function("TerminateJobObject", ctypes.c_int, _HANDLE, ctypes.c_uint32)


class _Process(subprocess.Popen):  # type: ignore[type-arg]
    """Ends with the test beside it, and so do its children, which hold its pipes."""

    alive: Final[weakref.WeakSet[_Process]] = weakref.WeakSet()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._job = getattr(subprocess, "Handle", int)(_create_job(None, None))
        # All children of a worker share one job object, so none may have a second one here.
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals["__name__"] in ("subprocess", __name__):
            frame = frame.f_back
        self._has_job = not frame.f_globals["__name__"].startswith("taskq")
        if self._has_job:
            _assign(int(self._job), int(self._handle))  # type: ignore[attr-defined,unused-ignore]
        self.alive.add(self)

    def end(self) -> None:
        if self._has_job:
            _end_all(int(self._job), 1)
        else:
            self.kill()

    def communicate(self, *args: Any, **options: Any) -> Any:
        try:
            return super().communicate(*args, **options)
        except subprocess.TimeoutExpired:
            self.end()
            raise

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036 - passed on unchanged
        if error[0] is not None:
            self.end()
        super().__exit__(*error)

    def send_signal(self, sig: int) -> None:
        if sig not in (signal.SIGINT, signal.SIGABRT):
            super().send_signal(sig)
            return
        self.kill()
        if sig == signal.SIGINT:
            pytest.skip("sends SIGINT")


def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Fail a test at its limit without ending the run, if the test ends with its processes."""
    main = threading.get_ident()

    def fail() -> None:
        for process in [*_Process.alive]:
            process.end()
        error = ctypes.py_object(TimeoutError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), error)
        last.start()

    timer = threading.Timer(settings.timeout, fail)
    last = threading.Timer(_GRACE_SECONDS, os._exit, (1,))
    timer.daemon = last.daemon = True
    timer.start()

    def cancel() -> None:
        timer.cancel()
        last.cancel()

    item.cancel_timeout = cancel
    return True


def pytest_configure(config: pytest.Config) -> None:
    # pytest leaves a scandir open when another run removes one of its folders.
    config.addinivalue_line("filterwarnings", "ignore:unclosed scandir:ResourceWarning")
    subprocess.Popen = _Process  # type: ignore[misc]
    for limit in (effort.within, effort.ended, effort.at_most):
        setattr(effort, limit.__name__, _stretched(limit))
    JobHandle.result = _wait  # type: ignore[method-assign,assignment]
    Path.symlink_to = _link  # type: ignore[method-assign,assignment]
    os.mkfifo = _Lacking("os.mkfifo")  # type: ignore[attr-defined,assignment,unused-ignore]
    for name in _STUBS:
        stub = sys.modules[name] = _Stub(name)
        package, _, last = name.rpartition(".")
        if package:
            setattr(importlib.import_module(package), last, stub)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Skip a module that only POSIX can import."""
    if _MODULES.search(module_path.read_text(encoding="utf-8")):
        return _Posix.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test whose own code uses POSIX names."""
    report = yield
    _skip_if_lacking(report, call)
    if report.skipped:
        item.stash[_SKIPPED] = report.longrepr
    elif report.failed and call.when == "teardown" and _SKIPPED in item.stash:
        report.outcome, report.longrepr = "skipped", item.stash[_SKIPPED]  # skipped half-way
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that uses POSIX names when it is imported."""
    report = yield
    _skip_if_lacking(report, getattr(report, "call", None))
    return report


def _skip_if_lacking(
    report: pytest.TestReport | pytest.CollectReport, call: pytest.CallInfo[Any] | None
) -> None:
    if call is None or call.excinfo is None or not report.failed:
        return
    paths = [str(entry.path) for entry in call.excinfo.traceback]
    ours = [path for path in paths if path.startswith(_ROOT)]
    lacks = _LACKING.search(str(call.excinfo.value))
    is_task = f'File "{_ROOT}tests{os.sep}' in str(call.excinfo.value)  # of a failed job
    is_tests = is_task or (bool(ours) and ours[-1].startswith(f"{_ROOT}tests{os.sep}"))
    if lacks and is_tests:
        report.outcome = "skipped"
        name = next(filter(None, lacks.groups())).replace("File not found", "a program of POSIX")
        report.longrepr = (report.nodeid, 0, f"Skipped: asks for {name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stretch the limits; skip tests that need POSIX."""
    for module in {getattr(item, "module", None) for item in items}:
        for name in vars(module).keys() & {*_LIMITS} if module else ():
            setattr(module, name, getattr(module, name) * _STRETCH)
    for item in items:
        if (posix := item.get_closest_marker("posix")) is not None:
            item.add_marker(pytest.mark.skip(reason=posix.args[0]))
        marker = item.get_closest_marker("timeout")
        own = marker.args if marker is not None else ()
        seconds = own[0] if own else float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(seconds * _STRETCH), append=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", ())
    counts = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
    passed, failed, error = (
        len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "failed", "error")
    )
    terminalreporter.write_line(
        f"windows: {passed} passed, {failed} failed, {error} errors, {len(skipped)} skipped"
    )
