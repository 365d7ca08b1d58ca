"""Errors of a run in taskq's words: Spark wraps them in tracebacks of its own."""

from __future__ import annotations

import re
from typing import Final

from taskq_plugins.spark.lake.errors import LakeError

#: The last line of a traceback whose error is one of ours: its class, and what it says.
_OURS: Final = re.compile(r"^\s*(?:\w+: )*taskq\w*(?:\.\w+)*\.\w+: (?P<text>.+)$", re.MULTILINE)
_ERROR: Final = re.compile(r"^\s*(?:Caused by: )?[\w.$]*(?:Error|Exception)\b.*$", re.MULTILINE)
_CHARACTERS_MAX: Final = 600
#: Options of the source as the command line calls them.
_OPTIONS: Final = (
    ("the option failOnDataLoss=false", "--ignore-data-loss"),
    ("failOnDataLoss=false", "--ignore-data-loss"),
    ("the option corruptMode=skip", "--corrupt skip"),
    ("corruptMode=skip", "--corrupt skip"),
)


class PipelineFailed(LakeError):
    """Spark failed under the run; what was committed before stands."""


class SourceGone(PipelineFailed):
    """The source vanished between plan and read; nothing of the batch was committed."""


#: How such an error begins in Spark's words.
_GONE: Final = (".DataLoss:", ".LogVanished:")


def failure(text: str) -> PipelineFailed:
    """Make an error from Spark's message, which may hold tracebacks."""
    ours = _OURS.findall(text)
    if ours:
        kind = SourceGone if any(sign in text for sign in _GONE) else PipelineFailed
        return kind(f"{spelled(ours[-1])[:_CHARACTERS_MAX]}; nothing of it was committed")
    lines = [match.group().strip() for match in _ERROR.finditer(text)]
    shown = (lines or [text.strip().partition("\n")[0] or "no reason was given"])[-1]
    return PipelineFailed(
        f"Spark stopped the run ({shown[:_CHARACTERS_MAX]}); what was committed before stands. "
        f"Remove the cause, then run again"
    )


def spelled(text: str) -> str:
    for name, option in _OPTIONS:
        text = text.replace(name, option)
    return text
