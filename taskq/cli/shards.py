"""Commands on a root of shards: on each of them in turn, or on the one that has the job."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.exceptions import Exit

from taskq.cli import render
from taskq.cli.errors import Failure
from taskq.cli.options import resolve
from taskq.errors import JobNotFound


def logs_below(root: Path) -> list[Path]:
    return [root / name for name in names_below(root)] or [root]


def names_below(root: Path) -> list[str]:
    if not (root / "shards.json").is_file():
        return []
    from taskq import Shards  # noqa: PLC0415 - few have shards

    layout = Shards.of(root)
    return [] if layout is None else layout.names()


def over_shards(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command take a root of shards for its directory, too."""

    @functools.wraps(command)
    def run(*args: Any, data_dir: Path | None, **rest: Any) -> Any:
        root = resolve(data_dir)
        paths = logs_below(root)
        # Who follows a log, or reads under a name, goes along one.
        if "job_id" in rest and (root / "registry.db").is_file():
            return command(*args, data_dir=_copy_with(root, rest["job_id"]), **rest)
        if paths == [root] or rest.get("follow") or rest.get("reader"):
            return command(*args, data_dir=data_dir, **rest)
        from taskq.shards import shard_with  # noqa: PLC0415 - few have shards

        if "job_id" in rest:
            tag = rest["job_id"].rpartition("-")[0]
            index = shard_with(list(map(str, paths)), tag) if tag else None
            if index is None:
                raise Failure(f"no shard of {root} has job {rest['job_id']}: give its whole id")
            return command(*args, data_dir=paths[index], **rest)
        begun = [path for path in paths if (path / "taskq.json").is_file()]
        read = None
        if rest.get("as_json"):
            # What can be followed prints a document a line.
            read = _documents if "follow" in rest else json.loads
        return _each(begun, functools.partial(command, *args, **rest), read)

    return run


def _copy_with(hub: Path, job_id: str) -> Path:
    """Return the copy of a hub that has a job, of whichever device.

    Raises:
        Failure: none has it.
    """
    from taskq.engine import Identity, LocalDisk, LogReader  # noqa: PLC0415 - few have a hub

    tag = job_id.rpartition("-")[0]
    for file in sorted(hub.glob("devices/*/*/taskq.json")):
        identity = Identity.read(LocalDisk(), str(file.parent))
        if identity is None or identity.tag != tag:
            continue
        with contextlib.suppress(JobNotFound), LogReader.open(str(file.parent)) as reader:
            reader.find_job(job_id)
            return file.parent
    whole = "" if tag else ": give its whole id"
    raise Failure(f"no device of {hub} has job {job_id}{whole}")


def _documents(lines: str) -> list[Any]:
    return [json.loads(line) for line in lines.splitlines()]


def _each(
    paths: list[Path], command: Callable[..., Any], read: Callable[[str], Any] | None
) -> None:
    """Run it on each; the exit code is the worst of theirs. What is ``read`` is one document."""
    worst, documents = 0, {}
    for path in paths:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                command(data_dir=path)
        except Exit as end:
            worst = max(worst, end.exit_code)
        if read is not None:
            documents[path.name] = read(printed.getvalue())
        else:
            render.echo(f"{path.name}\n{printed.getvalue()}")
    if read is not None:
        render.print_json(documents)
    if not paths:
        render.echo("No jobs yet.")
    if worst:
        raise Exit(worst)
