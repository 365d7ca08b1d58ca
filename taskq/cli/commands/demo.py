"""``taskq demo``: run the folder sync example of a repository or a wheel."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click

import taskq.cli.render as render
from taskq import extras, values
from taskq.cli import errors, options

#: Packages of the extra ``demo``.
_NEEDED: Final = ("httpx", "starlette", "uvicorn")
_ENDING_SIGNALS: Final = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
#: A shell's exit code for a program ended by a signal is this plus the signal's number.
_EXIT_SIGNAL: Final = 128


@click.command()
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The tree to sync.  [default: this Python's standard library]",
)
@click.option("--keep", is_flag=True, help="Keep the work directory, and print its path.")
@click.option(
    "-d",
    "--data-dir",
    type=click.Path(path_type=Path),
    callback=options.of_group,
    help="Put the task log here, and keep it; a new directory.",
)
def demo(directory: Path | None, keep: bool, data_dir: Path | None) -> None:
    """Sync a real directory to a receiver that is offline, then fails; kill the worker half-way.

    Each file is one durable job. At the end both trees are compared by SHA-256. Everything runs on
    this machine, on 127.0.0.1.
    """
    source = (directory or Path(sysconfig.get_path("stdlib"))).resolve()
    example = _example()
    with _work_directory(keep=keep) as work:
        queue = data_dir.resolve() if data_dir else work / "queue"
        _check(source, work, queue)
        try:
            with example.display.display() as display:
                sync = example.run.Sync(source=source, work=work, queue=queue, display=display)
                summary = sync.run()
        except example.run.SyncFailed as error:
            raise errors.Failure(f"the demo failed: {error}{_hint(keep=keep)}") from error
    for line in summary.lines():
        render.echo(line)
    if data_dir or keep:
        render.echo(f"look at its jobs: {values.command(str(queue.absolute()), 'ls')}")
    if summary.different:
        raise errors.Failure(f"the two trees differ{_hint(keep=keep)}")


def _hint(*, keep: bool) -> str:
    return "" if keep else ". Run it again with --keep to look at its files"


def _check(source: Path, work: Path, queue: Path) -> None:
    if queue.exists() and any(queue.iterdir()):
        raise errors.WrongUsage(
            f"{queue} is not empty; give the demo a new directory with -d, or none"
        )
    if any(path.is_relative_to(source) for path in (work.resolve(), queue)):
        raise errors.WrongUsage(
            f"the work directory lies in {source}, which would sync it to itself"
        )


def _example() -> Any:
    """Return the example's package, importable under its own short name.

    Raises:
        Failure: the example, or a package that it needs, is not installed.
    """
    package = Path(str(sys.modules["taskq"].__file__)).resolve().parent
    homes = (package.parent / "examples", package / "_examples")
    home = next((home for home in homes if (home / "folder_sync" / "run.py").is_file()), None)
    lacking = next((name for name in _NEEDED if importlib.util.find_spec(name) is None), None)
    if lacking is not None:
        raise errors.Failure(extras.missing("the demo", lacking, "demo"))
    if home is None:
        looked = " and ".join(str(home) for home in homes)
        raise errors.Failure(f"no example at {looked}: {extras.install_line('demo')}")
    sys.path.insert(0, str(home))
    for module in ("display", "run"):
        importlib.import_module(f"folder_sync.{module}")
    return importlib.import_module("folder_sync")


@contextmanager
def _work_directory(*, keep: bool) -> Iterator[Path]:
    """Yield a temporary directory that is removed at the end, also after a signal, unless kept."""
    work = Path(tempfile.mkdtemp(prefix="taskq-demo-"))
    previous = {number: signal.signal(number, _terminate) for number in _ENDING_SIGNALS}
    try:
        yield work
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if keep:
            render.echo(f"work directory: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def _terminate(number: int, _frame: object) -> NoReturn:
    """End the demo through its ``finally`` clauses, so that no process remains."""
    raise SystemExit(_EXIT_SIGNAL + number)
