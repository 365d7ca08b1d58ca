"""Started programs end with the tests that started them."""

from __future__ import annotations

import os

import pytest

from tests.processes.harness import eventually
from tests.processes.warm import Program
from tests.programs import run_python

AT_WORK = ["-c", "print('at work', flush=True)\nwhile True: pass"]
LEFT = f"""
import os
from tests.processes.warm import Program
program = Program({AT_WORK!r})
program.stdout.readline()
print(program.pid)
"""


def is_gone(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_a_run_of_tests_leaves_no_program_at_work(end: str) -> None:
    done = run_python("-c", f"{LEFT}\nos.sys.stdout.flush()\n{end}")
    eventually(lambda: is_gone(int(done.stdout)), 10)


def test_a_program_that_nobody_can_ask_for_its_end_is_killed() -> None:
    program = Program(AT_WORK)
    program.stdout.readline()
    for end in (program._line, program.stdin, program.stdout):
        end.close()
    eventually(lambda: is_gone(program.pid), 10)
