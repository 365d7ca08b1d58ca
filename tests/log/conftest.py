"""Give most tests of the log what they begin with."""

import pytest

from tests.log.world import Process, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process(world: World) -> Process:
    return world.process()
