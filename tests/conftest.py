import faulthandler
import gc
import os
import signal
import sys
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from taskq import TaskLog, TaskQ
from taskq.log.config import SEGMENT_BYTES_MIN
from tests.effort import run

# Examples are equal in all runs, so a red run means a change. They have no deadline, which a busy
# machine would miss. --hypothesis-profile=explore searches new examples.
_COMMON = settings(
    deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile("taskq", _COMMON, derandomize=True, max_examples=40)
settings.register_profile("torture", _COMMON, derandomize=True, max_examples=200)
settings.register_profile("explore", _COMMON, max_examples=2_000)

# Byte code is kept: hundreds of started programs would each compile imports and rewrite asserts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background job ignores SIGINT, and its children, which tests interrupt, would as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Threshold of the collector; a worker's command raises it, here in the process of the tests.
COLLECTS_AT: Final = gc.get_threshold()

#: Limit of slow tests, which ends a hang.
SLOW_SECONDS: Final = 1_800

#: Set on a quiet machine (.ci/run): a longer test fails, unless its mark ``long`` has a reason.
LONG_SECONDS: Final = float(os.environ.get("TASKQ_TESTS_LONG") or "inf")

#: A test's limit raises once, in the main thread. If the test hangs for these further seconds, in a
#: cleanup or in a wait that no signal ends, its process prints its stacks and ends.
HANG_SECONDS: Final = 120

#: Longer values do not become part of a test's name.
LONG_ID: Final = 1_000

TESTS: Final = Path(__file__).parent
#: A directory on a real disk, for tests of the disk.
DISK: Final = os.environ.get("TASKQ_TESTS_DISK")
#: Folders of tests with settings and a directory of their own, like a program.
PROGRAMS: Final = {
    "app", "calls", "conditions", "connection", "flows", "reading", "schedules", "testing",
    "workers",
}  # fmt: skip


#: The true standard error, which pytest replaces while it runs tests.
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    run.tortures = config.option.markexpr == "slow"
    settings.load_profile("torture" if run.tortures else "taskq")
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    mark = item.get_closest_marker("timeout")
    limit = float(mark.args[0] if mark is not None else item.config.getini("timeout"))
    stderr = item.config.stash[_STDERR]

    def begin() -> None:
        faulthandler.dump_traceback_later(limit + HANG_SECONDS, exit=True, file=stderr)
        if hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, limit)

    run.begin_limit = begin
    begin()
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a large value by its size, since processes exchange each test's name three times."""
    if isinstance(val, str | bytes) and len(val) > LONG_ID:
        return f"{argname} of {len(val)}"
    return None


def is_of_module(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    known = item._fixtureinfo.name2fixturedefs if names else {}  # type: ignore[attr-defined]
    shares = any(made[-1].scope == "module" for made in known.values())
    return shares and "spark" not in names and item.get_closest_marker("xdist_group") is None


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark growing tests as slow; tests that share a module's fixture run in one process."""
    cases = Counter[str]()
    for item in items:
        if is_of_module(item):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
        if (spread := item.get_closest_marker("spread")) is not None:
            test = item.nodeid.partition("[")[0]
            if cases[test] % spread.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[test] += 1
        grows = item.get_closest_marker("grows") or is_hypothesis_test(getattr(item, "obj", None))
        if run.tortures and grows:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None:
            own = item.get_closest_marker("timeout")
            seconds = max([SLOW_SECONDS, *(own.args if own is not None else ())])
            item.add_marker(pytest.mark.timeout(seconds), append=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # A limit that expires during the report of a failure would end the whole run.
    if call.excinfo is not None and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    report = yield
    reasons = [*item.iter_markers("long"), *item.iter_markers("slow")]
    if report.when == "call" and report.passed and call.duration > LONG_SECONDS and not reasons:
        report.outcome = "failed"
        report.longrepr = f"it took {call.duration:.1f} s: shorten it, or mark why it is long"
    return report


#: Reported threads of logs that tests left open.
_LEFT: Final[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()


def logs_at_work() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "taskq-storage"]


@pytest.fixture(scope="session")
def stays_open() -> Callable[[], None]:
    """Return a function that exempts the open logs of a module's fixture from the check below."""
    return lambda: _LEFT.update(logs_at_work())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that leaves a log open, since its thread would disturb later tests."""
    yield
    # Collect a worker's frozen garbage, which closes its files and sockets.
    gc.unfreeze()
    gc.set_threshold(*COLLECTS_AT)
    seen = logs_at_work()
    for thread in seen:
        if thread not in _LEFT:
            thread.join(5)
    left = [item for item in seen if item.is_alive() and item not in _LEFT]
    _LEFT.update(left)
    assert not left, f"{item.name} leaves a log open"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's settings from a test."""
    for name in [name for name in os.environ if name.upper().startswith("TASKQ_")]:
        if name != "TASKQ_NATIVE":  # the caller chooses between C and Python
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def settings_of_programs(request: pytest.FixtureRequest) -> None:
    if request.path.relative_to(TESTS).parts[0] in PROGRAMS:
        request.getfixturevalue("own_settings")


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    """Remove the working directory from ``sys.path`` after a test that imported an app from it."""
    path = sys.path.copy()
    yield
    sys.path[:] = path


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a directory below TMPDIR, which may be in memory; tests of the disk get a real one."""
    if DISK is None or request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with TemporaryDirectory(dir=DISK) as folder:
        yield Path(folder)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[TaskQ]:
    app = TaskQ(tmp_path / "data", durability="os")
    yield app
    app.close_sync()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[TaskLog]:
    path = tmp_path / "log"
    async with TaskLog.open(path, durability="os", segment_bytes=SEGMENT_BYTES_MIN) as log:
        yield log
