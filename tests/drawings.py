"""The recording of ``taskq demo``, and its pictures as SVG.

python -m tests.drawings            draw the pictures
python -m tests.drawings record     run and record the demo (asciinema 2), then draw
"""

import html
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".docs/pages/drawings"
CAST: Final = FOLDER / "demo.cast"
#: Height of a terminal's row, and width of its letters.
_ROW: Final = 18
_LETTER: Final = 7.25


def record() -> None:
    began = time.monotonic()
    command = [sys.executable, "-m", "taskq", "demo", "--directory", "taskq"]
    header = {"version": 2, "width": 84, "height": 20, "title": "taskq demo"}
    events = [json.dumps(header), json.dumps([0.0, "o", "$ taskq demo --directory taskq\r\n"])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            shown = line.rstrip("\n").replace(str(ROOT), "~/taskq")
            events.append(json.dumps([round(time.monotonic() - began, 2), "o", f"{shown}\r\n"]))
    CAST.write_text("\n".join(events) + "\n", "utf-8")


def events() -> Iterator[tuple[float, str]]:
    for line in CAST.read_text("utf-8").splitlines()[1:]:
        seconds, _, text = json.loads(line)
        yield seconds, text.rstrip("\r\n")


def terminal(*, plays: bool) -> str:
    rows = list(events())
    wide = round(_LETTER * max(len(text) for _, text in rows)) + 24
    high = _ROW * len(rows) + 24
    style = "text{font:12px ui-monospace,monospace;fill:#e6eeee;white-space:pre}"
    style += ".y{fill:#5fd787}.x{fill:#f08a80}@keyframes k{to{opacity:1}}"
    lines = []
    for number, (seconds, text) in enumerate(rows):
        kind = "x" if "SIGKILL" in text else "y" if text.startswith(("$", "identical")) else ""
        when = f' style="opacity:0;animation:k 1ms {seconds:g}s forwards"' if plays else ""
        lines.append(
            f'<text x="12" y="{26 + _ROW * number}" class="{kind}"{when}>{html.escape(text)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">'
        f"<title>taskq demo: a worker is killed half-way, and every byte arrives</title>\n"
        f"<style>{style}</style>\n"
        f'<rect width="{wide}" height="{high}" rx="8" fill="#10211f"/>\n'
        + "\n".join(lines)
        + "\n</svg>\n"
    )


def pictures() -> dict[str, str]:
    return {"demo.svg": terminal(plays=True), "demo-still.svg": terminal(plays=False)}


def main() -> None:
    if sys.argv[1:] == ["record"]:
        record()
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
