"""The drawings of the documents, and the recording of ``taskq demo``, as SVG.

    python -m tests.drawings            write them anew
    python -m tests.drawings record     run the demo, record it (asciinema 2) first

They follow the reader's light or dark scheme and are narrow, so that a phone can show them.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".docs/pages/drawings"
CAST: Final = FOLDER / "demo.cast"
WIDTH: Final = 400
_STYLE: Final = """<style>
text{font:13px system-ui,sans-serif;fill:#1b2b2d}
.b{font-weight:600}.s{font-size:11.5px;fill:#4b6163}
.n{fill:#e3f1f2;stroke:#0b5d66}.q{fill:none;stroke:#9db3b5;stroke-dasharray:4 3}
.r{fill:#fbe3e0;stroke:#a5322a}
path{fill:none;stroke:#0b5d66;stroke-width:1.5}.h{fill:#0b5d66;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#e6eeee}.s{fill:#a9bdbf}.n{fill:#123a3f;stroke:#5fc4cf}
.q{stroke:#5d7577}.r{fill:#4a2320;stroke:#f08a80}path{stroke:#5fc4cf}.h{fill:#5fc4cf}}
</style>"""
#: A terminal's rows are this high, its letters this wide.
_ROW: Final = 18
_LETTER: Final = 7.25

Point = tuple[float, float]


class Drawing:
    """Boxes, arrows and words on a sheet."""

    def __init__(self, title: str, height: int) -> None:
        self.title, self.height = title, height
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">'
            f"{html.escape(words)}</text>"
        )

    def box(self, x: float, y: float, wide: float, lines: Sequence[str], kind: str = "n") -> None:
        """Draw a box at its upper left corner; its first line is bold."""
        high = 12 + 17 * len(lines)
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high}" rx="7" class="{kind}"/>'
        )
        for number, line in enumerate(lines):
            self.text(x + wide / 2, y + 19 + 17 * number, line, "s" if number else "b")

    def arrow(self, *points: Point, words: str = "", at: Point | None = None) -> None:
        """Draw a line from point to point with a head at its end."""
        (x, y), (before_x, before_y) = points[-1], points[-2]
        length = ((x - before_x) ** 2 + (y - before_y) ** 2) ** 0.5
        dx, dy = 7 * (x - before_x) / length, 7 * (y - before_y) / length
        line = "L".join(f"{px:g} {py:g}" for px, py in points)
        head = f"{x:g} {y:g}L{x - dx - dy / 2:.1f} {y - dy + dx / 2:.1f}"
        head += f"L{x - dx + dy / 2:.1f} {y - dy - dx / 2:.1f}Z"
        self._parts.append(f'<path d="M{line}"/><path class="h" d="M{head}"/>')
        if words:
            middle = at or ((x + before_x) / 2, (y + before_y) / 2 - 5)
            self.text(*middle, words, "s")

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" role="img"><title>{html.escape(self.title)}</title>\n{_STYLE}\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def life() -> Drawing:
    draw = Drawing("The life of a job: from enqueued to succeeded, dead, cancelled or expired", 330)
    draw.box(20, 40, 120, ["scheduled", "delay, eta, retry"])
    draw.box(250, 40, 130, ["ready", "by priority and age"])
    draw.box(150, 150, 120, ["running", "an attempt"])
    draw.box(20, 260, 110, ["succeeded", "kept for keep"])
    draw.box(145, 260, 110, ["dead", "dead letter"], "r")
    draw.box(270, 260, 120, ["cancelled", "or expired"], "q")
    draw.arrow((200, 10), (200, 26), (80, 26), (80, 38))
    draw.arrow((200, 10), (200, 26), (315, 26), (315, 38), words="enqueued", at=(240, 20))
    draw.arrow((140, 62), (248, 62), words="due", at=(195, 57))
    draw.arrow((300, 88), (300, 168), (272, 168), words="claimed", at=(330, 130))
    draw.arrow((148, 165), (60, 165), (60, 88), words="Retry, Snooze", at=(102, 180))
    draw.arrow((235, 148), (265, 88), words="worker died", at=(205, 120))
    draw.arrow((180, 198), (80, 258), words="returned", at=(95, 232))
    draw.arrow((205, 198), (205, 258), words="gave up", at=(232, 232))
    draw.arrow((240, 198), (320, 258))
    draw.arrow((365, 88), (365, 258), words="")
    draw.arrow((200, 308), (200, 320), (394, 320), (394, 65), (382, 65))
    draw.text(300, 316, "requeue", "s")
    return draw


def processes() -> Drawing:
    draw = Drawing("Processes share one directory: some enqueue, workers run, others read", 350)
    draw.box(10, 10, 180, ["web process", "await send.enqueue(…)"])
    draw.box(210, 10, 180, ["script", "send.enqueue_sync(…)"])
    draw.box(60, 120, 280, ["the log: one directory", "…001.log  …8c4.log  …f20.log ← the end",
                            "write.lock: one writer, for microseconds",
                            "owners/: a lock for each living process"])  # fmt: skip
    draw.box(10, 270, 120, ["taskq worker", "claims, runs,", "settles"])
    draw.box(140, 270, 120, ["taskq worker", "any number", "of them"])
    draw.box(270, 270, 120, ["taskq ls, web", "read, and", "never write"], "q")
    draw.arrow((100, 58), (140, 118), words="frames", at=(92, 95))
    draw.arrow((300, 58), (260, 118), words="frames", at=(308, 95))
    draw.arrow((120, 202), (75, 268))
    draw.arrow((200, 202), (200, 268), words="jobs, outcomes", at=(255, 240))
    draw.arrow((280, 202), (330, 268))
    return draw


def enqueue() -> Drawing:
    draw = Drawing("An enqueue, from the caller to the disk and back", 420)
    lanes = (70, 205, 335)
    for x, name in zip(lanes, ("your thread", "storage thread", "disk"), strict=True):
        draw.text(x, 20, name, "b")
    steps = (
        ((10, 35, 120), ["1 encode", "checked, JSON"]),
        ((145, 85, 120), ["2 mailbox", "all of this moment"]),
        ((145, 140, 120), ["3 lock", "read what is new"]),
        ((145, 195, 120), ["4 decide", "records"]),
        ((275, 250, 115), ["5 append", "one frame, a CRC"]),
        ((275, 305, 115), ["6 fsync", "one for all"]),
        ((10, 360, 120), ["7 answer", "job.id"]),
    )
    for (x, y, wide), lines in steps:
        draw.box(x, y, wide, lines)
    draw.arrow((130, 58), (205, 58), (205, 83))
    draw.arrow((205, 131), (205, 138))
    draw.arrow((205, 186), (205, 193))
    draw.arrow((265, 218), (332, 218), (332, 248))
    draw.arrow((332, 296), (332, 303))
    draw.arrow((332, 351), (332, 383), (132, 383), words="one wake-up of the loop", at=(230, 377))
    return draw


def fleet() -> Drawing:
    draw = Drawing("Devices send their logs to a hub; tables are made of all of them", 390)
    for x, name in ((10, "edge-1"), (145, "edge-2"), (280, "edge-3")):
        draw.box(x, 10, 110, [name, "app, worker, log"])
    draw.box(40, 130, 320, ["hub", "devices/edge-1/…  a copy, byte for byte",
                            "outbox/edge-1  jobs for the device"])  # fmt: skip
    for x in (55, 190, 325):
        draw.arrow((x, 58), (x, 128))
        draw.arrow((x + 24, 130), (x + 24, 60))
    draw.text(120, 98, "taskq sync", "s")
    draw.text(262, 98, "jobs", "s")
    draw.box(10, 250, 180, ["taskq sql -d hub", "questions now"], "q")
    draw.box(210, 250, 180, ["taskq pipeline run", "Spark, from cron"])
    draw.box(210, 330, 180, ["lake: Delta tables", "jobs, attempts, failures"])
    draw.arrow((130, 193), (100, 248))
    draw.arrow((270, 193), (300, 248))
    draw.arrow((300, 298), (300, 328))
    return draw


def durable() -> Drawing:
    draw = Drawing("A durable order through a kill: finished steps come from the log", 430)
    draw.text(100, 20, "attempt 1", "b")
    draw.text(300, 20, "attempt 2", "b")
    draw.box(20, 35, 160, ["charge", "runs, is recorded"])
    draw.box(20, 110, 160, ["wait for the address", "no slot, no memory"])
    draw.box(20, 185, 160, ["pack", "begins"])
    draw.text(100, 262, "✗ kill -9", "b")
    draw.box(220, 35, 160, ["charge", "value from the log"], "q")
    draw.box(220, 110, 160, ["the address", "value from the log"], "q")
    draw.box(220, 185, 160, ["pack", "runs, is recorded"])
    draw.box(220, 260, 160, ["ship", "runs, is recorded"])
    draw.box(220, 335, 160, ["succeeded", "charged once"])
    draw.box(20, 290, 160, ["the lock is free:", "the worker is dead,", "the job is ready"], "r")
    for x, ys in ((100, (83, 158)), (300, (83, 158, 233, 308))):
        for y in ys:
            draw.arrow((x, y), (x, y + 25))
    draw.arrow((100, 266), (100, 288))
    draw.arrow((182, 320), (200, 320), (200, 58), (218, 58))
    return draw


DRAWINGS: Final = {
    "life": life, "processes": processes, "enqueue": enqueue, "fleet": fleet, "durable": durable
}  # fmt: skip


# -- the recording ---------------------------------------------------------------------------------


def record() -> None:
    """Run the demo on this package's sources and keep its lines with their times."""
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
    """Yield the lines of the recording with the seconds at which they came."""
    for line in CAST.read_text("utf-8").splitlines()[1:]:
        seconds, _, text = json.loads(line)
        yield seconds, text.rstrip("\r\n")


def terminal(*, plays: bool) -> str:
    """Return the recording as it plays, or as it stands at its end."""
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
    """Return each picture's text by its file name."""
    drawn = {f"{name}.svg": draw().svg() for name, draw in DRAWINGS.items()}
    return drawn | {"demo.svg": terminal(plays=True), "demo-still.svg": terminal(plays=False)}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["record"]:
        record()
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
