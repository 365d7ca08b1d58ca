"""A slow disk holds up callers that wait for it, and no other threads of the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.processes.harness import SCRIPTS, STEP_SECONDS
from tests.programs import run_python

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="macOS has no LD_PRELOAD"),
    pytest.mark.skipif(sys.maxsize < 2**32, reason="calls of 64 bits are exchanged"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the slow calls are compiled"),
]
_STILL_MS_MAX: Final = 20
#: A busy machine lets the whole process wait, too, now and then.
_TRIES: Final = 4


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("slow") / "slow.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, SCRIPTS / "slow.c"], check=True)
    return library


def _slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("call", "milliseconds"),
    [
        ("pwrite", 50),
        *(_slow("pwrite", delay) for delay in (5, 500)),
        *(_slow(call, delay) for call in ("pread", "flock", "statx") for delay in (5, 50, 500)),
    ],
)
def test_behind_a_slow_call_the_event_loop_stands_still_no_more(
    tmp_path: Path, slow: Path, call: str, milliseconds: int
) -> None:
    rounds = 3 if milliseconds > 100 else 10
    for _ in range(_TRIES):
        how = (tmp_path, call, str(milliseconds), str(rounds))
        done = run_python(
            SCRIPTS / "stand_still.py",
            *how,
            env={**os.environ, "LD_PRELOAD": str(slow)},
            check=True,
            timeout=STEP_SECONDS,
        )
        first, after, count = map(float, done.stdout.split())
        print(f"{call} {milliseconds} ms: {first} ms, then {after} ms, {count:.0f} slow calls")  # noqa: T201 - a figure
        assert count >= rounds
        if after <= _STILL_MS_MAX:
            return
    raise AssertionError(f"it stood still for {after} ms, {_TRIES} times")
