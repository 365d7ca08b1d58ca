"""Starts the Java process that pyspark talks to, and keeps its chatter off the terminal.

What Java and the Python processes on executors print passes through a pipe of ours: lines that
every start prints are dropped, all others go to standard error, and the last ones are kept for the
message of a start that fails. Spark's own log goes to a file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark import SparkConf

#: Lines that say nothing to a user, by their beginnings.
_NOISE: Final = (
    b"WARNING: Using incubator modules",
    b"WARNING: A restricted method in java.lang.System",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: Please consider reporting this to the maintainers",
    b"WARNING: Restricted methods will be blocked",
    b"WARNING: Use --enable-native-access",
    b"WARNING: java.lang.System::loadLibrary",
    b"WARNING: java.lang.System::load ",
    b"WARNING: package sun.security.action not in java.base",
    b"WARNING: sun.misc.Unsafe::",
)
#: Last lines of the output that an error may quote.
_LINES_KEPT: Final = 40
_STDERR: Final = 2
#: What Java gets to end by itself.
_END_SECONDS: Final = 10.0

_LOG_SETTINGS: Final = """\
status = fatal
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {folder}/spark.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""


def write_log_settings(folder: Path) -> Path:
    """Log settings for Java: warnings and worse go to ``spark.log`` of the folder."""
    path = folder / "log4j2.properties"
    path.write_text(_LOG_SETTINGS.format(folder=folder), encoding="utf-8")
    return path


class Output:
    """What Java prints, passed on to standard error without the noise."""

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=_LINES_KEPT)
        reader, self._writer = os.pipe()
        self._thread = threading.Thread(
            target=self._pass_on, args=(reader,), name="taskq-spark-output", daemon=True
        )

    def launch(self, conf: SparkConf) -> Any:
        """Start Java, and return pyspark's gateway to it.

        In a session of its own, so that a Ctrl-C or a stop that the terminal sends to the whole
        group of the driver leaves it to the driver to end it. Java ends by itself when the driver
        is gone, since its standard input is then closed.
        """
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - after its environment

        self._thread.start()
        options = {"stdout": self._writer, "stderr": self._writer, "start_new_session": True}
        try:
            return launch_gateway(conf, options)  # type: ignore[no-untyped-call,unused-ignore]
        finally:
            os.close(self._writer)

    def drained(self) -> list[str]:
        """The last lines, once Java has ended."""
        self._thread.join(1.0)
        return list(self.last)

    def _pass_on(self, reader: int) -> None:
        with os.fdopen(reader, "rb") as lines:
            for line in lines:
                if line.startswith(_NOISE):
                    continue
                self.last.append(line.decode("utf-8", "replace").rstrip())
                with contextlib.suppress(OSError):  # nobody reads our standard error any more
                    os.write(_STDERR, line)


def end(gateway: Any) -> None:
    """Let Java end, and wait for it; kill it if it does not."""
    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:  # started by somebody else
        return
    # Else objects that are collected from here on would tell Java so, and complain that it is gone.
    gateway._gateway_client.is_connected = False
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Let ``os.environ`` have these values for a while."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
