"""What ``TaskLog.open`` takes: each option is checked by name before anything is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from taskq import QueuePolicy, TaskLog, TaskQ
from taskq.connection.logoptions import LogOptions, log_config
from taskq.errors import UsageError
from taskq.log.config import ALWAYS_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bogus": 1}, "there is no option 'bogus': the options are durability, "),
        ({"durability": "maybe"}, "durability is 'maybe', it must be one of fsync, interval, os"),
        ({"interval": "soon"}, "interval is 'soon': give seconds"),
        ({"interval": 0}, "interval, lock_wait and segment_age must be above 0"),
        ({"lock_wait": "soon"}, "lock_wait is 'soon': give seconds"),
        ({"keep": "soon"}, "keep is 'soon': give seconds"),
        ({"keep_dead": -1}, "keep_dead is -1: it must not be negative"),
        ({"starvation": "x"}, "starvation is 'x': give seconds"),
        ({"keep_bytes": "1MiB"}, "keep_bytes is '1MiB', it must be a whole number"),
        ({"keep_segments": 1.5}, "keep_segments is 1.5, it must be a whole number"),
        ({"keep_segments": 0}, "keep_segments is 0, it must be above 0"),
        ({"reserve": 1.5}, "reserve is 1.5, it must be a whole number"),
        ({"min_free": True}, "min_free is True, it must be a whole number"),
        ({"dead_max": "x"}, "dead_max is 'x', it must be a whole number"),
        ({"keys_max": None}, "keys_max is None, it must be a whole number"),
        ({"segment_bytes": 10}, "segment_bytes is 10, it must be 65536 to "),
        ({"upkeep": "no"}, "upkeep is 'no', it must be True or False"),
        ({"exclusive": 1}, "exclusive is 1, it must be True or False"),
        ({"name": b"x"}, "name is b'x', it must be text"),
        ({"queues": ["a"]}, "queues is ['a']: give what is other in each, by their names"),
        ({"queues": {5: {}}}, "queue name is 5, it must be text"),
        ({"queues": {"a": 5}}, "queues['a'] is 5: give a QueuePolicy, or its options as a dict"),
        ({"queues": {"a": {"kep": 5}}}, "queues['a'] has no option 'kep': did you mean 'keep'"),
        ({"queues": {"a": {"keep": "x"}}}, "queues['a'] keep is 'x': give seconds"),
        ({"queues": {"a": {"dead_max": 1.5}}}, "dead_max is 1.5, it must be a whole number"),
    ],
)
async def test_a_wrong_option_is_refused_by_name(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        TaskLog.open(tmp_path / "log", **options)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("wrong", ["1d", -1, True, b""])
def test_a_policy_is_checked_where_it_is_made(wrong: Any) -> None:
    for name in ("keep_seconds", "keep_dead_seconds"):
        with pytest.raises(UsageError, match=f"^{name} of a queue is "):
            QueuePolicy(**{name: wrong})


def test_a_queue_is_told_in_the_words_of_the_log(tmp_path: Path) -> None:
    """As in ``taskq.toml``, so to an app as to a log."""
    options: LogOptions = {
        "keep": "never",
        "queues": {
            "a": {"keep": "1d", "keep_dead": "never", "dead_max": 3, "compress": "zlib"},
            "b": QueuePolicy(keep_seconds=5),
            "c": {},
        },
    }
    config = log_config(options)
    assert config == TaskQ(tmp_path, **options)._connection.config
    assert config.keep_seconds is None
    assert config.queues == {
        "a": QueuePolicy(
            keep_seconds=DAY, keep_dead_seconds=ALWAYS_SECONDS, dead_max=3, compress="zlib"
        ),
        "b": QueuePolicy(keep_seconds=5),
        "c": QueuePolicy(),
    }
