"""Take the short tables of README.md in one go, by this interpreter and by Debian's: 12 minutes.

Run: ``python -m tests.bench.tables > tables.md``, on a machine that has nothing else to do. Above
each table stands the command that made it. ``--quick`` rehearses it, and installs what is missing.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.bench.harness import ROOT, options

#: Debian's is optimized by a profile; pyenv's are not.
PYTHONS: Final = (sys.executable, "/usr/bin/python3.11")
_BESIDE: Final = "--contender taskq --contender sqlite --contender disk"
_PEERS: Final = (
    "--contender 'taskq fsync' --contender 'taskq os' --contender huey --contender flexiq"
)
_ROWS: Final = "--only cycle --only drain --only lone --only latency --only start --only import"
#: For each interpreter, and once.
EACH: Final = (
    f"bench --scale 0.3 {_BESIDE}",
    f"peers --rounds 3 --jobs 10000 {_PEERS} {_ROWS}",
)
ONCE: Final = ("disk", "idle")
QUICK: Final = {
    "bench": "--quick --jobs 200", "peers": "--rounds 1 --jobs 5", "disk": "--count 100 --jobs 20",
    "idle": "--seconds 0.5",
}  # fmt: skip


def main() -> None:
    """Run each command, and print it above what it prints."""
    given = options(__doc__, quick=False)
    for python in filter(lambda path: Path(path).exists(), PYTHONS):
        commands = EACH if python != PYTHONS[0] else (*ONCE, *EACH)
        for command in commands:
            words = f"{command} {QUICK[command.split()[0]]}" if given.quick else command
            words += "" if python == PYTHONS[0] else f" --python {python}"
            print(f"\n`python -m tests.bench.{words}`\n", flush=True)
            # One that fails says so; the others are taken all the same.
            program = (sys.executable, "-m", *shlex.split(f"tests.bench.{words}"))
            subprocess.run(program, check=False, cwd=ROOT)


if __name__ == "__main__":
    main()
