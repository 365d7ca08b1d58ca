"""``taskq top``: the loop of looking, drawing and listening to keys."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from taskq.cli import WrongUsage, log_argument, open_reader, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

    from taskq import TaskQ
    from taskq.engine import LogReader, Moment
    from taskq_plugins.top.screen import Act, Screen
    from taskq_plugins.top.seen import Picture

_SECONDS_MIN: Final = 0.2


@click.command()
@log_argument
@click.option("--read-only", is_flag=True, help="Let nobody change the log from here.")
@click.option("--once", is_flag=True, help="Print one look, and end.")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(_SECONDS_MIN),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def top(data_dir: Path | None, read_only: bool, once: bool, interval: float) -> None:
    """Show what goes on: queues, running jobs, last ends and failures, and act on them by keys.

    Enter opens what is chosen, w tells why it does not run, / filters, t shows the past (then the
    arrows move by a minute). c cancels, r requeues, n runs now, p pauses and resumes.
    """
    from rich.console import Console  # noqa: PLC0415 - help must not import it

    from taskq_plugins.top.screen import Screen  # noqa: PLC0415 - as above

    path = resolve(data_dir)
    with open_reader(data_dir) as reader, contextlib.ExitStack() as stack:
        screen, console = Screen(read_only=read_only or path.is_file()), Console(highlight=False)
        views = _Views(reader, stack)
        if once or not console.is_terminal:
            console.print(views.drawn(screen, console))
            return
        if not sys.stdin.isatty():
            raise WrongUsage("keys are read from a terminal, and there is none: add --once")
        _run(views, screen, console, interval, stack.enter_context(_acting(str(path))))


class _Views:
    """What is looked at: the present, and a moment of the past while that is wanted."""

    def __init__(self, reader: LogReader, stack: contextlib.ExitStack) -> None:
        from taskq_plugins.top.seen import Watcher  # noqa: PLC0415 - as above

        self._now = self._shown = reader, Watcher(reader)
        self._stack = stack
        self._moment: Moment | None = None

    def look(self, screen: Screen) -> Picture:
        from taskq.errors import TaskqError  # noqa: PLC0415 - as above

        try:
            if screen.moment != self._moment:
                self._go(screen)
            return self._shown[1].look()
        except TaskqError as error:
            if screen.moment is None:
                raise
            screen.said, screen.moment = str(error), None
            return self.look(screen)

    def drawn(self, screen: Screen, console: Console) -> RenderableType:
        from taskq.errors import TaskqError  # noqa: PLC0415 - as above
        from taskq_plugins.looks.reading import job_of  # noqa: PLC0415 - as above
        from taskq_plugins.top.drawing import draw, draw_job  # noqa: PLC0415 - as above

        picture = self.look(screen)
        width, height = console.size
        if screen.opened:
            try:
                seen = job_of(self._shown[0], screen.opened)
            except TaskqError as error:
                screen.said, screen.opened = str(error), ""
            else:
                return draw_job(seen, screen, picture.time_ns, width, height)
        return draw(picture, screen, width, height)

    def _go(self, screen: Screen) -> None:
        from taskq.engine import LogReader  # noqa: PLC0415 - as above
        from taskq_plugins.top.seen import Watcher  # noqa: PLC0415 - as above

        shown, self._shown, self._moment = self._shown, self._now, screen.moment
        if shown is not self._now:
            shown[0].close()
        if screen.moment is not None:
            reader = LogReader.open(self._now[0].path, at=screen.moment)
            self._shown = reader, Watcher(reader, screen.moment_text)
            self._stack.callback(reader.close)  # legal twice


def _run(
    views: _Views, screen: Screen, console: Console, interval: float, act: Callable[[Act], str]
) -> None:
    from rich.live import Live  # noqa: PLC0415 - as above

    from taskq_plugins.top.keys import keys_of  # noqa: PLC0415 - as above

    live = Live(console=console, screen=True, auto_refresh=False)
    with keys_of(sys.stdin.fileno()) as keys, live:
        while screen.is_open:
            live.update(views.drawn(screen, console), refresh=True)
            for key in keys.wait(interval):
                screen.press(key, views.look(screen))
            while screen.to_do:
                screen.said = act(screen.to_do.pop(0))


class _acting:  # noqa: N801 - used as a function
    """Gives what does an act; the log is opened at the first, and closed at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._app: TaskQ | None = None

    def __enter__(self) -> Callable[[Act], str]:
        return self._act

    def __exit__(self, *_exc: object) -> None:
        if self._app is not None:
            self._app.close_sync()

    def _act(self, act: Act) -> str:
        from taskq import TaskQ  # noqa: PLC0415 - few act
        from taskq.errors import TaskqError  # noqa: PLC0415 - as above

        if self._app is None:
            self._app = TaskQ(self._path, upkeep=False, name="taskq top")
        try:
            done = self._do(self._app, act)
        except TaskqError as error:
            return str(error).partition("\n")[0]
        return f"{act}: done" if done else f"{act}: it is so already, or too late"

    @staticmethod
    def _do(app: TaskQ, act: Act) -> Any:
        name = act.names[0]
        if act.verb == "cancel":
            return app.job(name).cancel_sync()
        if act.verb == "requeue":
            return app.dead.requeue_many_sync(list(act.names)).count
        if act.verb == "run now":
            return app.edit_sync(name, run_now=True)
        return (app.pause_sync if act.verb == "pause" else app.resume_sync)(name)
