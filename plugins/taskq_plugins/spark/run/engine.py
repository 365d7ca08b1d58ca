"""Choose who reads what is new: this process, or Spark from the size on where it is no slower.

Spark takes seconds to start, and then a part of the work goes to as many cores as there are: below
a number of these it never gets ahead of a process that reads directly.
"""

from __future__ import annotations

import os
from typing import Final

from taskq.cli import render

#: How a run reads: as it finds best, always by Spark, or never.
ENGINES: Final = ("auto", "spark", "local")
#: Measured by ``python -m tests.bench.pipeline engines``: seconds that Spark takes to start ...
START_SECONDS: Final = 6.0
#: ... and for each MiB of log: of a process that reads it directly, ...
DIRECT_SECONDS: Final = 0.090
#: ... of Spark's driver, and of all its executors together.
DRIVER_SECONDS: Final = 0.030
EXECUTOR_SECONDS: Final = 0.215
_MIB: Final = 2**20


def spark_from(cores: int) -> int | None:
    gain = DIRECT_SECONDS - DRIVER_SECONDS - EXECUTOR_SECONDS / cores
    return round(START_SECONDS / gain) * _MIB if gain > 0 else None


def takes_spark(engine: str, master: str | None, left_bytes: int) -> bool:
    if engine != "auto":
        return engine == "spark"
    least = spark_from(os.cpu_count() or 1)
    return master is not None or (least is not None and left_bytes >= least)


def advice() -> str:
    cores = os.cpu_count() or 1
    least = spark_from(cores)
    with_cores = f"with {cores} core{'s' * (cores > 1)}"
    if least is None:
        return f"never, {with_cores}: reading directly is faster; --engine spark insists"
    return f"from {render.size(least)} of new log on, {with_cores}"
