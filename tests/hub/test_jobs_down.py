"""H7: a job for a device is handed over once, ends once and is not forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.effort import grows, some
from tests.hub.outbox_simulation import OutboxSimulation
from tests.programs import run_forked

if TYPE_CHECKING:
    from pathlib import Path

_STEPS: Final = 80
_SEEDS: Final = 1_000
_GROUPS: Final = 10


@grows
@pytest.mark.parametrize("group", range(_GROUPS))
def test_a_job_for_a_device_is_handed_over_once_and_ends_once_and_is_never_forgotten(
    group: int,
) -> None:
    handed = 0
    for seed in range(group, some(_GROUPS, _SEEDS), _GROUPS):
        simulation = OutboxSimulation(seed)
        try:
            simulation.run(_STEPS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        handed += simulation.handed
    assert handed


@pytest.mark.parametrize(
    ("devices", "rounds", "kills"),
    [
        pytest.param(2, 3, 3, marks=pytest.mark.timeout(120)),
        pytest.param(100, 10, 30, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_jobs_for_a_group_run_once_on_each_though_hub_devices_and_line_fail(
    tmp_path: Path, devices: int, rounds: int, kills: int
) -> None:
    options = f"--devices {devices} --rounds {rounds} --kills {kills} --dir {tmp_path}"
    done = run_forked("-m", "tests.processes.hub_jobs", *options.split(), seconds=3_600)
    assert done.returncode == 0, done.stderr
    assert f"{devices * rounds} jobs for {devices} devices ran once on each" in done.stdout
