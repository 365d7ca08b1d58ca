"""What the commands tell of a job's attempts: who made them, and what failures have in common."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from taskq.core.fingerprints import fingerprint, pattern_of
from tests.cli.helpers import taskq, taskq_json

if TYPE_CHECKING:
    from tests.cli.helpers import Sample

SLOW = fingerprint("", pattern_of("TimeoutError: slow"))


def test_show_names_the_process_and_the_fingerprint_of_each_attempt(sample: Sample) -> None:
    text = taskq("show", sample.ids["retried"], "-d", sample.path).stdout
    assert "FINGERPRINT" in text
    assert SLOW in text
    assert f"{os.getpid()} sample" in text


def test_show_tells_programs_class_message_fingerprint_and_process(sample: Sample) -> None:
    (attempt,) = taskq_json("show", sample.ids["retried"], "-d", sample.path)["attempts"]
    seen = {name: attempt[name] for name in ("error", "message", "fingerprint", "pid", "worker")}
    assert seen == {
        "error": "TimeoutError",
        "message": "slow",
        "fingerprint": SLOW,
        "pid": os.getpid(),
        "worker": "sample",
    }
    assert attempt["host"]


def test_a_timeline_for_programs_tells_the_same_where_an_attempt_failed(sample: Sample) -> None:
    events = taskq_json("timeline", sample.ids["retried"], "-d", sample.path)
    seen = {event["kind"]: (event["error"], event["fingerprint"]) for event in events}
    assert seen == {
        "enqueued": (None, None),
        "claimed": (None, None),
        "retried": ("TimeoutError", SLOW),
    }
