"""Why Spark did not start, in one or two lines, instead of Java's pages."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Final

from taskq.core.errors import TaskqError
from taskq_plugins.spark.errors import SparkError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What is found in Java's words -> what to tell.
_KNOWN: Final = (
    (
        ("BindException", "Address already in use", "Can't assign requested address"),
        (
            "Spark could not listen on its port: another program has it, or the loopback "
            "interface is down. See taskq pipeline doctor"
        ),
    ),
    (
        ("No space left on device", "ENOSPC"),
        "the disk is full under {folder}: make room, or set TMPDIR to another folder",
    ),
    (
        ("Could not reserve enough space", "There is insufficient memory", "OutOfMemoryError"),
        (
            "there is too little memory for Java: stop other programs, or give Spark less with "
            "SPARK_DRIVER_MEMORY=512m"
        ),
    ),
    (
        ("All masters are unresponsive",),
        "the master {master} does not answer: start it, or use --master local[*]",
    ),
    (
        ("UnsupportedClassVersionError",),
        "the Java in JAVA_HOME is too old: Spark needs Java 17 or later",
    ),
)


def start_error(error: Exception, master: str, lines: Sequence[str]) -> TaskqError:
    """The error to raise for one that pyspark raised while it started.

    Args:
        error: it.
        master: what was to be started.
        lines: the last that Java printed.
    """
    if isinstance(error, TaskqError):
        return error
    said = "\n".join([str(error), *lines])
    for signs, told in _KNOWN:
        if any(sign in said for sign in signs):
            return SparkError(told.format(folder=tempfile.gettempdir(), master=master))
    return SparkError(
        f"Spark did not start on {master}: {_essence(error, lines)}. "
        f"taskq pipeline doctor --start looks for the cause"
    )


def _essence(error: Exception, lines: Sequence[str]) -> str:
    """The one line that says most."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        return str(java.toString()).partition("\n")[0]
    if "JAVA_GATEWAY_EXITED" in str(error) and lines:
        telling = [line for line in lines if "Error" in line or "Exception" in line]
        return (telling or list(lines))[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0]
