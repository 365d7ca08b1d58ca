"""``taskq top``: what it shows of a log, and what its keys do, on a real pseudo terminal."""

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyte
import pytest
from rich.console import Console

from taskq import State, TaskQ
from taskq.log.read.reader import LogReader
from taskq_plugins.top.screen import ConsoleKeyboard, Picture, Screen, Watcher, draw
from tests.cli.helpers import taskq
from tests.processes.harness import is_readable
from tests.workers.fakes import Held

#: How long a terminal may take to show what is waited for; a busy machine is slow to start Python.
PATIENCE_SECONDS: Final = 40.0
LINES: Final = 40


def fill(path: Path) -> dict[str, str]:
    app = TaskQ(path, durability="os")

    @app.task(name="send", queue="mail", retry=1)
    def send(name: str) -> None:
        if name.startswith("no"):
            raise ValueError(f"mailbox {name} is gone")

    ids = {name: send.enqueue_sync(name).id for name in ("ada", "no-1", "no-2")}
    app.run_worker(burst=True)
    ids["late"] = send.options(delay="9h").enqueue_sync("late").id
    ids["lone"] = app.enqueue_sync(app.call_by_name("ghost").options(queue="odd")).id
    app.close_sync()
    return ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def seen(path: Path) -> Picture:
    with LogReader.open(str(path)) as reader:
        return Watcher(reader).look()


def text_of(picture: Picture, screen: Screen, width: int, height: int = LINES) -> str:
    console = Console(width=width, height=height, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(draw(picture, screen, width, height))
    return capture.get()


class Terminal:
    def __init__(self, columns: int, *words: object) -> None:
        self.screen = pyte.Screen(columns, LINES)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskq", *map(str, words)], stdin=slave, stdout=slave,
            stderr=slave, env=os.environ | {"TERM": "xterm-256color", "NO_COLOR": ""},
        )  # fmt: skip

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait(self, *wanted: str, without: str = "\0") -> str:
        until = time.monotonic() + PATIENCE_SECONDS
        while not (all(job in self.text for job in wanted) and without not in self.text):
            assert time.monotonic() < until, f"{wanted} is not to be seen:\n{self.text}"
            if is_readable(self._master, 0.1):
                self._stream.feed(os.read(self._master, 65_536))
            elif self._process.poll() is not None:
                pytest.fail(f"it ended with {self._process.returncode}:\n{self.text}")
        return self.text

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        self.press("q")
        code = self._process.wait(PATIENCE_SECONDS)
        assert termios.tcgetattr(self._slave) == self.before, "the terminal is not as it was"
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)


@contextmanager
def terminal(columns: int, *words: object) -> Iterator[Terminal]:
    terminal = Terminal(columns, *words)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize(("typed", "keys"), [
    ("", []),
    ("jé\xe0", ["j", "é", "\xe0"]),  # a letter of French
    ("\xe0H\0P\xe0Kq", ["up", "down", "left", "q"]),
    ("\xe0Sx\r\x1b\x08", ["x", "enter", "escape", "backspace"]),
    ("\x03", ["q"]),
])  # fmt: skip
def test_keys_of_a_windows_console_have_names(
    monkeypatch: pytest.MonkeyPatch, typed: str, keys: list[str]
) -> None:
    """Each arrow comes in two parts."""
    left = list(typed)

    def kbhit() -> bool:
        if left[:1] == ["\x03"]:
            raise KeyboardInterrupt
        return bool(left)

    console: Any = SimpleNamespace(kbhit=kbhit, getwch=lambda: left.pop(0))
    monkeypatch.setitem(sys.modules, "msvcrt", console)
    assert ConsoleKeyboard(0).wait(0) == keys


# -- on a terminal --------------------------------------------------------------------------------


def test_a_person_sees_a_failure_reads_it_and_runs_it_again(path: Path) -> None:
    ids = fill(path)
    with terminal(100, "top", path, "-i", "0.2") as screen:
        screen.wait(
            "QUEUES", "LAST ENDS", "FAILURES", "2 of send", "ValueError: mailbox no-2 is gone"
        )
        screen.press("/")
        screen.wait("filter: ")
        screen.press("gone\r")
        screen.wait("FAILURES", without="QUEUES")
        screen.press("\r")
        screen.wait(ids["no-2"], "dead", "claimed", "ValueError: mailbox no-2 is gone")
        screen.press("w")
        screen.wait("it died")
        screen.press("\x1br")
        screen.wait("requeue 2 jobs? y/n")
        screen.press("y")
        screen.wait("requeue 2 jobs: done")
        assert screen.end() == 0
    with LogReader.open(str(path)) as reader:
        states = [job.state for job in reader.jobs(None, "mail", None, 9)]
    assert states.count(State.READY) == 2


def test_a_job_is_run_now_another_cancelled_and_a_queue_paused_and_resumed(path: Path) -> None:
    ids = fill(path)
    with terminal(100, "top", "-d", path, "-i", "0.2") as screen:
        screen.wait("mail", "odd")
        screen.press("cp")  # no job is chosen to cancel
        screen.wait("pause mail? y/n")
        screen.press("n")
        screen.wait("q quit", without="y/n")
        screen.press("p")
        screen.wait("pause mail? y/n")
        screen.press("y")
        screen.wait("pause mail: done", "paused")
        screen.press("p")
        screen.wait("resume mail? y/n")
        screen.press("y")
        screen.wait("resume mail: done")
        for job, key, verb in (("late", "n", "run now"), ("lone", "c", "cancel")):
            screen.press(f"/{ids[job]}\r\r")
            screen.wait(ids[job], "enqueued")
            screen.press(key)
            screen.wait(f"{verb} {ids[job]}? y/n")
            screen.press("y")
            screen.wait(f"{verb} {ids[job]}: done")
            screen.press("\x1b")
            screen.press("\x1b")
        assert screen.end() == 0
    with LogReader.open(str(path)) as reader:
        states = [reader.job(reader.parse_id(ids[name])) for name in ("late", "lone")]
    assert [state.state for state in states if state] == [State.READY, State.CANCELLED]


def test_the_past_is_shown_and_nothing_changes_it(path: Path) -> None:
    fill(path)
    with terminal(100, "top", path, "-i", "0.2") as screen:
        screen.wait("FAILURES")
        screen.press("t")
        screen.wait("as it was")
        screen.press("3\r")
        screen.wait("as it was 3", "3 ready", without="FAILURES")
        screen.press("p")
        screen.wait("the past cannot be changed")
        screen.press("t\r")
        screen.wait("FAILURES")
        screen.press("\x03")
        assert screen._process.wait(PATIENCE_SECONDS) == 0


def test_sixty_columns_and_a_copy_for_reading_only_are_enough(path: Path, tmp_path: Path) -> None:
    fill(path)
    case = tmp_path / "case.zip"
    assert taskq("report", "-d", path, "-o", case).exit_code == 0
    for words in (("-d", path, "--read-only"), (case,)):
        with terminal(60, "top", *words, "-i", "0.2") as screen:
            text = screen.wait("QUEUES", "FAILURES", "2 of send")
            assert max(map(len, text.splitlines())) <= 60
            screen.press("p")
            screen.wait("--read-only")
            assert screen.end() == 0


# -- what it shows --------------------------------------------------------------------------------


def test_once_prints_what_is_and_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    monkeypatch.setenv("COLUMNS", "120")
    result = taskq("top", path, "--once")
    assert result.exit_code == 0
    for text in (str(path), "0 workers", "2 dead", "LAST ENDS", "FAILURES", "2 of send"):
        assert text in result.stdout
    assert "\x1b" not in result.stdout
    assert taskq("top", path).stdout.count("QUEUES") == 1, "without a terminal it is as with --once"
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "taskq", "top", str(path), "--once"]
    assert subprocess.run(command, stdout=write, check=False).returncode == 141
    os.close(write)


def test_jobs_that_nobody_can_run_and_progress_are_seen(path: Path) -> None:
    async def live() -> Picture:
        async with TaskQ(path, durability="os") as app:
            film = Held(app, "half of it", name="film")
            await film.task.enqueue()
            await app.enqueue_by_name("ghost")
            async with app.worker(concurrency=3):
                await film.runs.wait()
                picture = await asyncio.to_thread(seen, path)
                while not picture.status.running[0][1]:  # a thread records the calls
                    picture = await asyncio.to_thread(seen, path)
                film.end.set()
            return picture

    picture = asyncio.run(live())
    text = text_of(picture, Screen(), 100)
    assert "1 worker  1 of 3 slots" in text
    assert "1 job waits that no worker knows: ghost (1)" in text
    assert "████░░░░  50% half of it" in text


def test_the_chosen_row_is_one_bar_whatever_its_cells_are_coloured(path: Path) -> None:
    """A part that kept its colour would be read as a figure: blanks of a spark as a full one."""
    fill(path)
    console = Console(width=100, height=LINES, color_system="standard", force_terminal=True)
    lines = console.render_lines(draw(seen(path), Screen(), 100, LINES))
    (row,) = [line for line in lines if any(part.text.startswith("mail") for part in line)]
    styles = {cell.style for cell in row if cell.text}
    assert len(styles) == 1
    (style,) = styles
    assert style is not None
    assert style.bgcolor is not None


@pytest.mark.parametrize("width", [60, 79, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_none_too_many(path: Path, width: int) -> None:
    fill(path)
    picture = seen(path)
    for height in (12, LINES):
        lines = text_of(picture, Screen(), width, height).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert any("1 scheduled" in line for line in lines) is (width >= 80)


def test_an_idle_log_is_hardly_looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path)
    with LogReader.open(str(path)) as reader:
        watcher = Watcher(reader)
        first = watcher.look()
        monkeypatch.setattr("taskq_plugins.top.screen.LogStatus", None)
        assert watcher.look() is first


# -- keys -----------------------------------------------------------------------------------------


def test_a_wrong_time_shows_an_error_and_keeps_the_live_view(path: Path) -> None:
    fill(path)
    picture, screen = seen(path), Screen()
    for key in ("t", "s", "o", "o", "n", "backspace", "enter"):
        screen.press(key, picture)
    before: Any = screen.moment
    assert before is None
    assert "soo" in screen.message
    for key in ("t", "1", "h", "enter"):
        screen.press(key, picture)
    moment: Any = screen.moment
    screen.press("left", picture)
    earlier: Any = screen.moment
    assert earlier.time_ns == moment.time_ns - 60 * 10**9
