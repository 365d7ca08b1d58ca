"""Seeded simulation of a device and its hub: nothing lost, nothing twice, nothing silent."""

from __future__ import annotations

from typing import Final

import pytest

from tests.effort import grows, some
from tests.hub.simulation import Simulation

_STEPS: Final = 60
_SEEDS: Final = 1_000
_GROUPS: Final = 10


@grows
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_copy_is_what_the_device_has_through_crashes_and_a_bad_line(group: int) -> None:
    for seed in range(group, some(2 * _GROUPS, _SEEDS), _GROUPS):
        simulation = Simulation(seed)
        try:
            simulation.run(_STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
