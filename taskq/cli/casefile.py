"""A case file: a zip of a log for other people to analyse; read commands can open it."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import platform
import re
import shutil
import tempfile
import time
import zipfile
import zlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import taskq._native as native
import taskq.cli.render as render
from taskq import State
from taskq.cli import errors
from taskq.text import without_secrets

if TYPE_CHECKING:
    from taskq.engine import LogReader

#: Files with the JSON output of commands.
_COMMANDS: Final = {
    "health.json": ("health",),
    "verify.json": ("verify",),
    "stats.json": ("stats",),
    "workers.json": ("workers",),
    "schedules.json": ("schedules", "ls"),
    "dead.json": ("dead", "ls", "-n", "200"),
    "jobs.json": ("ls", "-n", "200"),
}
#: States with timelines, and most timelines of each state.
_TIMELINES_MAX: Final = 50
_TIMELINES_OF: Final = ("DEAD", "RUNNING")
#: Mode of the file: a log is private to its user, and so is its content.
_PRIVATE: Final = 0o600
#: Files to unpack, and their most bytes; a segment is under 2 GiB.
_OF_LOG: Final = re.compile(r"taskq\.json|log/\d{20}\.log")
_UNPACKED_BYTES_MAX: Final = 16 << 30
#: Before more bytes than this are unpacked, a line is printed.
_QUIET_BYTES_MAX: Final = 1 << 28
_ENCRYPTED: Final = 1
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PIECE_BYTES: Final = 1 << 20


def write_case(
    reader: LogReader, file: Path, since_ns: int, *, bodies: bool, show_secrets: bool = False
) -> int:
    """Write the case file of a log; return its size in bytes.

    Args:
        reader: of the log.
        file: path of the new file.
        since_ns: time of the first records.
        bodies: include payloads and results.
        show_secrets: keep values with names like "password".

    Raises:
        FileExistsError: the file exists.
    """
    from taskq.engine import excerpt  # noqa: PLC0415 - help must not import the log

    path, cleaned = reader.journal.path, _as_it_is if show_secrets else without_secrets
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(made, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as case:
        case.writestr("case.json", _text(_about(reader, since_ns, bodies=bodies)))
        case.writestr("settings.json", _text(_settings(Path(path))))
        for name, words in _COMMANDS.items():
            case.writestr(name, _text(cleaned(_output(*words, "--json", "-d", path))))
        listed = [
            reader.jobs({State[state]}, None, None, _TIMELINES_MAX) for state in _TIMELINES_OF
        ]
        for view in chain.from_iterable(listed):
            events = [event.as_dict() for event in reader.timeline(view.lsn)]
            case.writestr(f"timelines/{view.job_id}.json", _text(cleaned(events)))
        for segment in excerpt(reader.journal, since_ns, bodies=bodies, hides=not show_secrets):
            case.writestr(f"log/{segment.name}", segment.data)
        # With this file the excerpt is a read-only log.
        case.writestr("taskq.json", reader.journal.identity.as_backup().encode())
    return file.stat().st_size


def unpacked(file: Path) -> Path | None:
    """Return the log of a case file, unpacked until this process ends; None if it is no zip.

    Raises:
        Failure: the file is no case file, or too large.
    """
    if not file.is_file() or not zipfile.is_zipfile(file):
        return None
    folder = Path(tempfile.mkdtemp(prefix="taskq-case-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(file) as case:
            _unpack(case, _members(case, file, shutil.disk_usage(folder).free), folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise errors.Failure(f"{file} does not read ({error}): have it sent again") from error
    return folder


def _members(case: zipfile.ZipFile, file: Path, room: int) -> list[zipfile.ZipInfo]:
    """Return the log's files in a case file, checked before any is unpacked.

    Raises:
        Failure: there are none, they are too large, or packed in an unknown way.
    """
    members = [member for member in case.infolist() if _OF_LOG.fullmatch(member.filename)]
    if "taskq.json" not in {member.filename for member in members}:
        raise errors.Failure(f"{file} is a zip and no case file of a log")
    if any(
        member.flag_bits & _ENCRYPTED or member.compress_type not in _PACKED for member in members
    ):
        raise errors.Failure(
            f"{file} is encrypted, or packed in a way that no case file is: unpack it, "
            f"and give the directory"
        )
    size, limit = sum(member.file_size for member in members), min(_UNPACKED_BYTES_MAX, room)
    if size > limit:
        raise errors.Failure(
            f"{file} unpacks to {render.size(size)}, and {render.size(limit)} is the most here: "
            f"set TMPDIR to a larger place, or have a shorter one sent"
        )
    if size > _QUIET_BYTES_MAX:
        render.echo(f"unpacking {render.size(size)} of {file}", err=True)
    return members


def _unpack(case: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path) -> None:
    (folder / "log").mkdir()
    for member in members:
        with case.open(member) as packed, (folder / member.filename).open("xb") as out:
            shutil.copyfileobj(packed, out, _PIECE_BYTES)


def _about(reader: LogReader, since_ns: int, *, bodies: bool) -> dict[str, Any]:
    from importlib.metadata import distributions  # noqa: PLC0415 - takes 20 ms

    from taskq.views import moment  # noqa: PLC0415 - as above

    return {
        "log_id": str(reader.log_id),
        "directory": reader.journal.path,
        "made_at": moment(time.time_ns()),
        "records_since": moment(since_ns),
        "with_payloads": bodies,
        "taskq": importlib.import_module("taskq").__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "plain_jobs": native.label(),
        "packages": {package.name: package.version for package in distributions()},
    }


def _settings(path: Path) -> dict[str, Any]:
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - as above
    from taskq.errors import UsageError  # noqa: PLC0415 - as above

    try:
        settings = load_settings(None, data_dir=path)
        files, values = [str(file) for file in settings.files], settings.model_dump(mode="json")
    except UsageError:
        # The error may quote a secret value.
        return {"problem": "they are refused: the command check says why"}
    return {"files": files, "settings": without_secrets(values)}


def _as_it_is(value: Any) -> Any:
    return value


def _output(*words: str) -> Any:
    """Return the document that a command prints, or its error."""
    from taskq.cli.main import main  # noqa: PLC0415 - it imports the commands, and so this

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            main.main([*words], standalone_mode=False)
        except (click.ClickException, click.exceptions.Exit, SystemExit) as error:
            errors.write(str(error))
    text = out.getvalue()
    return json.loads(text) if text else {"problem": errors.getvalue()}


def _text(document: Any) -> str:
    return json.dumps(document, indent=2, default=str) + "\n"
