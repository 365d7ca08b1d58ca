"""The moment that a page tells of: as it was asked for, or as a step of the slider by time."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import Final

from taskq.cli import render
from taskq.engine import Moment
from taskq.values import SECOND_NS
from taskq.views import moment
from taskq_plugins.web.problems import Problem

_AT_CHARACTERS_MAX: Final = 60
#: What the slider by time points at, back from now: minutes, then hours and days.
_STEPS: Final = tuple(
    minutes * 60 * SECOND_NS
    for minutes in (
        1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 540, 720, 1_080,
        *(days * 1_440 for days in (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 180, 365)),
    )
)  # fmt: skip


def moment_asked(text: str) -> str:
    """Return a moment as it stays the same while pages are walked through: a span back would not.

    Raises:
        UsageError: it is none.
    """
    if not text:
        return ""
    at = Moment.parse(text[:_AT_CHARACTERS_MAX], time.time_ns(), "at")
    return str(at.lsn) if at.time_ns is None else moment(at.time_ns) or "0"


def steps_of(begun_ns: int) -> tuple[str, ...]:
    """Return what the slider points at, from now back to the first record."""
    age_ns = time.time_ns() - begun_ns
    spans = [render.duration(step) for step in _STEPS if step < age_ns]
    return ("now", *(f"{span} ago" for span in spans), "the first record")


def step_of(back_ns: int, steps: tuple[str, ...]) -> int:
    number = sum(step < back_ns - SECOND_NS for step in _STEPS) + 1
    return min(number, len(steps) - 1)


def moment_back(text: str, begun_ns: int) -> str:
    """Return the moment that a step of the slider means; "" for now.

    Raises:
        Problem: it is none.
    """
    now_ns = time.time_ns()
    if not re.fullmatch(r"-?\d{1,3}", text):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"back={text!r:.40} is no step of the slider"
        )
    number = abs(int(text))
    if not number:
        return ""
    steps = [step for step in _STEPS if step < now_ns - begun_ns]
    return (moment(now_ns - steps[number - 1]) or "1") if number <= len(steps) else "1"
