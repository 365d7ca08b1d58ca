"""Folds of parts so small that a short history fills, splits, sweeps and joins them."""

from collections.abc import Iterator

import pytest

from taskq.core.folds import agenda, dedup, jobtable, lanes, moments


@pytest.fixture(scope="module")
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (moments, lanes):
            patch.setattr(module, "_BLOCK", 4)
        for module in (agenda, moments):
            patch.setattr(module, "STALE_MAX", 4)
        for module in (agenda, dedup):
            patch.setattr(module, "_SWEEP_EVERY", 2)
        patch.setattr(jobtable, "CHUNK", 16)
        patch.setattr(dedup, "_PAGE", 4)
        yield
