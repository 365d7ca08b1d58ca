"""Servings read of workers equal their published ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskq.core.rates import Limit, Rate
from taskq.core.views import Hold, Serving
from taskq.log.machine.owners import publish, read_servings

_NAMES = st.none() | st.frozensets(st.text(max_size=5), max_size=3)
_COUNT = st.integers(0, 2**40)
_LIMITS = st.builds(
    Limit,
    concurrency=st.integers(1, 9),
    rate=st.none() | st.builds(Rate, st.integers(1, 9), st.integers(10**7, 10**9)),
    scope=st.text(max_size=5),
)
_HOLDS = st.builds(
    Hold, queues=_NAMES, tasks=_NAMES, is_breaker=st.booleans(), text=st.text(), since_ns=_COUNT
)
_SERVINGS = st.builds(
    Serving,
    queues=_NAMES,
    tasks=_NAMES,
    slots=_COUNT,
    holds=st.lists(_HOLDS, max_size=2).map(tuple),
    limits=st.none() | st.dictionaries(st.text(max_size=5), _LIMITS, min_size=1, max_size=2),
)


@given(servings=st.lists(_SERVINGS, max_size=3))
def test_what_workers_claim_is_read_as_it_was_told(
    servings: list[Serving], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.getbasetemp()
    publish(directory, 7, servings)
    assert read_servings(directory, 7) == tuple(servings)


@pytest.mark.parametrize("value", [None, 1, "a", [], ["a"], {}, {"a": "b"}], ids=repr)
@pytest.mark.parametrize("name", ["queues", "tasks", "slots", "holds", "limits"])
def test_a_value_of_another_type_is_left_out(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / f"{7:016x}.serves").write_text(json.dumps([{name: value}, {"slots": 3}]))
    serving, whole = read_servings(tmp_path, 7)
    fits = {"queues": list, "tasks": list, "slots": int}.get(name)
    if fits is None or not isinstance(value, fits):
        assert serving == Serving()
    assert whole == Serving(slots=3)
