"""Hold how far a call goes through the house: a batch does what its requests ask, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROUTE: Final = Path(__file__).parents[1] / "bench" / "route.py"
#: Limits of rooms, files and functions of ours, there and back.
MOST: Final = {
    "jobs": {
        "enqueue": (8, 15, 75),
        "enqueue to result": (20, 56, 278),
        "enqueue to ack": (22, 60, 305),
        "taskq ls": (15, 40, 245),
    },
    "dead": {"dead letter": (24, 61, 320)},
    "killed": {"open after kill -9": (18, 60, 262)},
}


@pytest.mark.parametrize("way", MOST)
def test_a_route_stays_short(way: str) -> None:
    command = [sys.executable, str(ROUTE), way, "--shortest", "--json"]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for title, most in MOST[way].items():
        counts = tuple(measured[title].values())
        assert all(map(int.__le__, counts, most)), (title, counts)
