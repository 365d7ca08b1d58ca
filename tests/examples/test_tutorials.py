"""Tutorials are played as they stand, and leave the files that are beside them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest

from tests.programs import free_port
from tests.tables import ROOT
from tests.terminal import Shell, steps
from tests.test_readme import TUTORIALS, is_shown

_FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: tkinter without a screen: buttons are clicked twice at once, and the window closes in the midst
#: of the work; the second one stays until it is done.
_WINDOW: Final = """
import time
from pathlib import Path

widgets, timers = [], []

class Tk:
    def title(self, text):
        pass

    def after(self, milliseconds, call):
        timers.append((time.monotonic() + milliseconds / 1000, call))

    def mainloop(self):
        again = Path("closed")
        last = "smaller" if again.exists() else " of 20"
        again.touch()
        for widget in widgets * 2:
            widget.get("command", bool)()
        while not any(last in str(widget.get("text")) for widget in widgets):
            time.sleep(0.05)
            for timer in [timer for timer in timers if timer[0] <= time.monotonic()]:
                timers.remove(timer)
                timer[1]()

class Widget(dict):
    def __init__(self, root, **options):
        super().__init__(options)
        widgets.append(self)

    def pack(self, **how):
        pass

class ttk:
    Label = Progressbar = Button = Widget
"""
_FILE: Final = re.compile(r"# ([\w/]+\.py)( goes on)?\n")


@pytest.mark.parametrize(
    "tutorial",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != TUTORIALS[0])) for name in TUTORIALS],
)
def test_a_tutorial_does_what_it_shows(tmp_path: Path, tutorial: str) -> None:
    """With ``-s`` it prints how long each command takes."""
    folder = ROOT / "examples" / tutorial
    (tmp_path / "tkinter.py").write_text(_WINDOW)
    port = str(free_port())
    took: list[tuple[float, str]] = []
    shell = Shell(tmp_path)
    try:
        for language, code in _FENCE.findall((folder / "README.md").read_text(encoding="utf-8")):
            if language == "python" and (named := _FILE.match(code)):
                with (tmp_path / named[1]).open("a" if named[2] else "w") as file:
                    file.write(code.partition("\n")[2] if named[2] else code)
                whole = (tmp_path / named[1]).read_text()
                assert (folder / named[1]).read_text().startswith(whole)
            if language == "console":
                for step in steps(f"```console\n{code}```"):
                    began = time.perf_counter()
                    shown = shell.run(step.typed.replace("8470", port))
                    shown = shown.replace(str(tmp_path), "/home/you")
                    took.append((time.perf_counter() - began, step.typed))
                    assert is_shown(shown, step.shown), f"$ {step.typed}\n{shown}"
    finally:
        shell.close()
    print("\n".join(f"{seconds:6.2f} s  {line}" for seconds, line in took))  # noqa: T201
