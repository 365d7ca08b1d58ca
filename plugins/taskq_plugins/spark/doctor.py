"""``taskq pipeline doctor``: looks at everything that a run needs, and says what to do about it."""

from __future__ import annotations

import enum
import importlib.metadata
import os
import re
import shutil
import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from taskq.cli import render
from taskq.cli.errors import EXIT_FAILED
from taskq.cli.options import json_option
from taskq.core.errors import TaskqError
from taskq_plugins.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LOOPBACK: Final = "127.0.0.1"
#: package -> (its oldest version, the first that is too new, the extra that brings it)
PACKAGES: Final[dict[str, tuple[str, str, str]]] = {
    "pyspark": ("4.2", "5", "spark"),
    "pyarrow": ("18", "", "spark"),
    "pandas": ("2.2", "3", "spark"),
    "numpy": ("1.26", "", "spark"),
    "duckdb": ("2.0", "", "spark"),
    "matplotlib": ("3.9", "", "charts"),
}
#: Without these only some commands fail, and say so.
_OPTIONAL: Final = frozenset({"duckdb", "matplotlib"})
DISK_BYTES_FAIL: Final = 256 << 20
DISK_BYTES_WARN: Final = 2 << 30
MEMORY_BYTES_FAIL: Final = 512 << 20
MEMORY_BYTES_WARN: Final = 2 << 30
#: How long a smoke test may take, once Spark has started, before it is worth a word.
_SMOKE_SECONDS_WARN: Final = 10.0
_GIB: Final = 1 << 30


class Grade(enum.StrEnum):
    """What a finding means."""

    #: nothing to do
    OK = "ok"
    #: it runs, but badly or not with every command
    WARN = "warn"
    #: nothing will run
    FAIL = "fail"


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    grade: Grade
    detail: str
    #: what to do about it, "" where there is nothing to do
    remedy: str = ""


def look_at_java() -> Finding:
    """Which Java Spark would run on."""
    try:
        java = find_java()
    except TaskqError as error:
        detail, _, remedy = str(error).rpartition(": ")
        detail, _, more = detail.rpartition(": install")
        return Finding("java", Grade.FAIL, detail or str(error), f"install{more}: {remedy}")
    return Finding("java", Grade.OK, f"{java.version} from {java.source}, {java.path}")


def look_at_package(name: str, version: str | None) -> Finding:
    """Whether a package is there, and new and old enough; ``version`` is None where it is not."""
    low, high, extra = PACKAGES[name]
    wanted = f">={low}" + (f",<{high}" if high else "")
    remedy = f'pip install "taskq-local[{extra}]"'
    missing = Grade.WARN if name in _OPTIONAL else Grade.FAIL
    if version is None:
        return Finding(name, missing, f"not installed, {wanted} is needed", remedy)
    at = _numbers(version)
    if at < _numbers(low) or (high and at >= _numbers(high)):
        return Finding(name, missing, f"{version}, but {wanted} is needed", remedy)
    return Finding(name, Grade.OK, version)


def look_at_loopback() -> Finding:
    """Whether a port of 127.0.0.1 can be listened on and reached."""
    try:
        with (
            socket.create_server((_LOOPBACK, 0)) as server,
            socket.create_connection(server.getsockname(), 2.0),
        ):
            port = server.getsockname()[1]
    except OSError as error:
        return Finding(
            "loopback",
            Grade.FAIL,
            f"{_LOOPBACK} cannot be listened on and reached: {error}",
            "bring the loopback interface up (ip link set lo up), or allow it in the sandbox",
        )
    return Finding("loopback", Grade.OK, f"{_LOOPBACK} can be listened on, such as port {port}")


def look_at_disk(name: str, path: Path) -> Finding:
    """How much room there is where files go; ``path`` may be yet to be made."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(name, Grade.FAIL, f"{there}: {error.strerror}", "choose another folder")
    remedy = "make room, or set TMPDIR to another folder" if name == "temp" else "make room"
    if not os.access(there, os.W_OK):
        return Finding(name, Grade.FAIL, f"{there} cannot be written", "choose another folder")
    return _room(name, free, f"free under {there}", (DISK_BYTES_FAIL, DISK_BYTES_WARN), remedy)


def look_at_journals(path: Path) -> Finding:
    """Whether the logs to read are there."""
    if not path.is_dir():
        return Finding(
            "journals", Grade.FAIL, f"{path} is no directory", "give that of a log, or of many"
        )
    names = [path] if (path / "taskq.json").exists() else sorted(path.glob("*/taskq.json"))
    names = names or sorted(path.glob("*/*/taskq.json"))
    if not names:
        return Finding("journals", Grade.WARN, f"{path} holds no task log", "give their parent")
    return Finding("journals", Grade.OK, f"{len(names)} task logs under {path}")


def look_at_memory() -> Finding:
    """How much memory is left for Java and the Python processes beside it."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = int(re.findall(r"MemAvailable:\s+(\d+)", text)[0]) * 1024
    except (OSError, IndexError):  # no Linux
        return Finding("memory", Grade.OK, "not known on this system")
    limits = MEMORY_BYTES_FAIL, MEMORY_BYTES_WARN
    return _room("memory", free, "available", limits, "stop other programs, or take fewer cores")


def look_at_master(master: str) -> Finding:
    """Whether there is such a master, and it answers."""
    from taskq_plugins.spark.masters import check_master, is_local  # noqa: PLC0415

    try:
        check_master(master)
    except TaskqError as error:
        detail, _, remedy = str(error).rpartition(": ")
        return Finding("master", Grade.FAIL, detail, remedy)
    where = (
        "on this machine" if is_local(master) else "elsewhere; its address was not guarded by us"
    )
    return Finding("master", Grade.OK, f"{master}, {where}")


def start_spark(master: str) -> Finding:
    """Whether Spark starts, and runs a Python function on each executor."""
    try:
        seconds_start, seconds, versions = _smoke(master)
    except TaskqError as error:
        return Finding("start", Grade.FAIL, str(error), "see the lines above")
    except ImportError as error:
        return Finding("start", Grade.FAIL, str(error), 'pip install "taskq-local[spark]"')
    except Exception as error:  # noqa: BLE001 - whatever Spark raises is what we were asked for
        first = str(error).partition("\n")[0]
        return Finding("start", Grade.FAIL, f"{type(error).__name__}: {first:.200}")
    detail = f"Spark starts in {seconds_start:.1f} s and runs Python {versions} in {seconds:.1f} s"
    if seconds > _SMOKE_SECONDS_WARN:
        return Finding("start", Grade.WARN, detail, "the machine is busy: stop other programs")
    return Finding("start", Grade.OK, detail)


def _smoke(master: str) -> tuple[float, float, str]:
    from taskq_plugins.spark.session import spark_session  # noqa: PLC0415 - 1 s to import

    began = time.perf_counter()
    with spark_session("taskq pipeline doctor", master=master) as spark:
        started = time.perf_counter()
        numbers: Any = spark.sparkContext.parallelize(range(2), 2)
        found = numbers.mapPartitions(_python_version).collect()
        ended = time.perf_counter()
    return started - began, ended - started, "/".join(sorted(set(found)))


def _python_version(_: Iterable[int]) -> list[str]:
    import sys  # noqa: PLC0415 - on the executor

    return [".".join(map(str, sys.version_info[:3]))]


def _room(name: str, free_bytes: int, where: str, limits: tuple[int, int], remedy: str) -> Finding:
    detail = f"{free_bytes / _GIB:.1f} GiB {where}"
    fail, warn = limits
    if free_bytes < fail:
        return Finding(name, Grade.FAIL, f"{detail}, at least {fail / _GIB:.2g} are needed", remedy)
    if free_bytes < warn:
        return Finding(name, Grade.WARN, f"{detail}, which is little", remedy)
    return Finding(name, Grade.OK, detail)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@click.command()
@click.option("--lake", type=click.Path(path_type=Path), help="Look at the disk under this lake.")
@click.option("--journals", type=click.Path(path_type=Path), help="Look for logs under this.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark is to run.")
@click.option("--start", is_flag=True, help="Start Spark and run something, which takes seconds.")
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    lake: Path | None,
    journals: Path | None,
    master: str,
    start: bool,
    as_json: bool,
) -> None:
    """Check Java, packages, ports, disk and memory, and say what to do about each.

    Exits with 1 if something keeps the pipeline from running.
    """
    looks: list[Callable[[], Finding]] = [look_at_java]
    looks += [partial(look_at_package, name, _version(name)) for name in PACKAGES]
    looks += [look_at_loopback, partial(look_at_disk, "temp", Path(tempfile.gettempdir()))]
    if lake is not None:
        looks.append(partial(look_at_disk, "lake", lake))
    if journals is not None:
        looks.append(partial(look_at_journals, journals))
    looks += [look_at_memory, partial(look_at_master, master)]
    if start:
        looks.append(partial(start_spark, master))
    findings = []
    for look in looks:
        finding = look()
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        render.print_json({"findings": [one._asdict() for one in findings]})
    if any(one.grade is Grade.FAIL for one in findings):
        context.exit(EXIT_FAILED)


def _show(finding: Finding) -> None:
    line = f"{finding.grade:<4}  {finding.name:<10}  {finding.detail}"
    click.echo(render.printable(f"{line}. {finding.remedy}" if finding.remedy else line))
