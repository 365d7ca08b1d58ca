"""Take the figures of README.md anew in one go, by this interpreter and by Debian's: 11 minutes.

Run: ``python -m tests.bench.tables --write``, on a machine that has nothing else to do. Above each
table stands the command that made it. ``--write`` puts all into README.md, between its two marks.
``--quick`` rehearses it, and installs what is missing.
"""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

from tests.bench.harness import ROOT, options

README: Final = Path(__file__).with_name("README.md")
_MARKED: Final = re.compile(
    r"(<!-- made by python -m tests\.bench\.tables -->\n).*(<!-- end -->)", re.DOTALL
)
#: Debian's is optimized by a profile; pyenv's are not.
PYTHONS: Final = (sys.executable, "/usr/bin/python3.11")
_PEERS: Final = " ".join(
    f"--contender {shlex.quote(name)}" for name in ("taskq fsync", "taskq os", "huey", "flexiq")
)
#: For each interpreter, and once.
EACH: Final = (
    "bench --scale 0.3 --contender taskq --contender taskq-python --contender sqlite",
    "lone --count 500",
    f"peers --rounds 5 --jobs 1000 {_PEERS} --only lone --only start",
)
ONCE: Final = (f"peers --rounds 3 {_PEERS} --only cycle --only drain --only latency", "idle")
QUICK: Final = {
    "bench": "--quick --jobs 200", "lone": "--count 20", "peers": "--rounds 1 --jobs 5",
    "idle": "--seconds 0.5",
}  # fmt: skip


def main() -> None:
    given = options(__doc__, quick=False, write=False)
    parts = []
    for python in filter(lambda path: Path(path).exists(), PYTHONS):
        for command in EACH if python != PYTHONS[0] else (*EACH, *ONCE):
            words = f"{command} {QUICK[command.split()[0]]}" if given.quick else command
            words += "" if python == PYTHONS[0] else f" --python {python}"
            # A failing one prints its error; the others go on.
            program = (sys.executable, "-m", *shlex.split(f"tests.bench.{words}"))
            done = subprocess.run(program, check=False, cwd=ROOT, text=True, stdout=subprocess.PIPE)
            name = textwrap.fill(f"`python -m tests.bench.{words}`", 118, break_on_hyphens=False)
            parts.append(f"{name}\n\n{done.stdout.strip()}\n")
            print(f"\n{parts[-1]}", flush=True)
    if given.write:
        text = README.read_text(encoding="utf-8")
        figures = "\n".join(parts).replace("\\", r"\\")
        README.write_text(_MARKED.sub(rf"\1\n{figures}\n\2", text), encoding="utf-8")


if __name__ == "__main__":
    main()
