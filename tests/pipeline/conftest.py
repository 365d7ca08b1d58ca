from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of all tests that need one; starting it takes seconds."""
    if shutil.which("java") is None:
        pytest.skip("there is no Java on this machine, and Spark needs Java 17")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from taskq_plugins.spark.session import open_session  # noqa: PLC0415 - 1 s to import

        session = open_session("taskq tests", master="local[2]")
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.stop()
