"""Programs that tests run to their end."""

import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.processes.warm import Program

#: Time for a program on a busy machine; a program that hangs fails its test.
SECONDS: Final = 120


def free_port(count: int = 1) -> int:
    """Return a free port of 127.0.0.1, below the ports that systems give to clients."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        try:
            for number in range(port, port + count):
                socket.create_server(("127.0.0.1", number)).close()
        except OSError:
            continue
        return port


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"check": False, "timeout": SECONDS, **options}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, **options)  # noqa: PLW1510


def run_forked(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None,
    check: bool = False, seconds: float = SECONDS,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Do as ``run_python``, in a fork of this process, which saves the slow imports."""
    if not hasattr(os, "fork"):
        return run_python(*words, cwd=cwd, env=env, check=check, timeout=seconds)
    with tempfile.TemporaryFile("w+") as errors:
        program = Program([*map(str, words)], cwd, errors.fileno(), env)
        program.stdin.close()
        with program.stdout:
            shown = program.stdout.read()
        code = program.wait(seconds)
        errors.seek(0)
        done = subprocess.CompletedProcess(program.args, code, shown, errors.read())
    if check:
        done.check_returncode()
    return done


def run_taskq(
    *words: object, cwd: Path | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    return run_forked("-m", "taskq", *words, cwd=cwd, check=check)
