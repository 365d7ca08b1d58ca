"""``taskq worker MODULE:APP`` with the usual options, read without click: it takes 10 ms to import.

Whatever else is written, wrong or rare, is left to click, which reads, refuses and explains it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskq.cli import whole_streams
from taskq.values import NamedTuple
from taskq_workers.pool import CONCURRENCY_DEFAULT, DRAIN_SECONDS_DEFAULT
from taskq_workers.process.elsewhere import Order
from taskq_workers.process.running import run_one
from taskq_workers.runs.joblogs import Logging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskq_workers.events import Hook

#: By its short name, which the long one stands for too.
_OPTIONS: Final = {"--concurrency": "-c", "--queues": "-Q", "--data-dir": "-d"}
#: Set by a shell that asks for what completes a word.
_COMPLETION: Final = "_TASKQ_COMPLETE"


class Usual(NamedTuple):
    """Words of the command line that were asked for."""

    target: str
    queues: list[str] | None
    data_dir: Path | None
    concurrency: int
    burst: bool
    quiet: bool

    def order(self, reporter: Hook) -> Order:
        """Return it in the words of a worker."""
        return Order(
            target=self.target,
            concurrency=self.concurrency,
            queues=self.queues,
            burst=self.burst,
            drain_timeout=DRAIN_SECONDS_DEFAULT,
            on_event=None if self.quiet else reporter,
        )


def usual(words: Sequence[str]) -> Usual | None:
    """Return what the words after ``taskq worker`` ask for; None if that is for click to say."""
    given: dict[str, list[str]] = {"": [], "-c": [], "-Q": [], "-d": []}
    flags, rest = set(), iter(words)
    for word in rest:
        if word in {"--burst", "-q", "--quiet"}:
            flags.add(word)
            continue
        name = _OPTIONS.get(word, word if word in given else "")
        value = next(rest, "") if name else word
        if not value or value.startswith("-"):
            return None
        given[name].append(value)
    counts, places = given["-c"] or [str(CONCURRENCY_DEFAULT)], given["-d"] or _places()
    queues = [name.strip() for text in given["-Q"] for name in text.split(",")]
    is_plain = all(name and "=" not in name for name in queues)
    if len(given[""]) != 1 or len(places) > 1 or not is_plain or _COMPLETION in os.environ:
        return None
    if not all(count.isascii() and count.isdecimal() and int(count) for count in counts):
        return None
    return Usual(
        given[""][0],
        queues or None,
        Path(places[0]) if places else None,
        int(counts[-1]),
        "--burst" in flags,
        bool(flags & {"-q", "--quiet"}),
    )


def _places() -> list[str]:
    path = os.environ.get("TASKQ_DATA_DIR")
    return [path] if path else []


def plain_worker(words: Sequence[str]) -> Callable[[], None] | None:
    """Return what runs the worker until it stops; None if the words are for click."""
    asked = usual(words)
    return None if asked is None else partial(_run, asked)


def _run(asked: Usual) -> None:
    with whole_streams():
        try:
            run_one(asked.order, asked.data_dir, None, -1, Logging)
            with contextlib.suppress(ValueError, AttributeError):  # closed, or none, by some task
                sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - as of any command
            from taskq.cli import leave  # noqa: PLC0415 - with click

            leave(error)
