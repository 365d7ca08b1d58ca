from __future__ import annotations

import os
import shutil
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.effort import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: In the environment of a machine that has Java, so that no test is left out unnoticed.
JAVA_IS_A_MUST = "TASKQ_TESTS_NEED_JAVA"
TIMEOUT_SECONDS = 300
CONF: dict[str, str] = {}
if not run.tortures:
    # To compile each plan costs more than it saves on a few thousand rows.
    CONF |= {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield the one Spark session of all tests that need one; starting it takes seconds."""
    if shutil.which("java") is None:
        reason = "there is no Java on this machine, and Spark needs Java 17"
        if os.environ.get(JAVA_IS_A_MUST):
            pytest.fail(reason)
        pytest.skip(reason)
    stack = ExitStack()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from taskq_plugins.spark.session import spark_session  # noqa: PLC0415 - 1 s to import

        made = spark_session("taskq tests", master="local[2]", conf=CONF)
        session = stack.enter_context(made)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stack.close()


@pytest.fixture
def no_java() -> Iterator[None]:
    """Runs of the pipeline go without Spark, and fill the tables that Spark's SQL does not."""
    from tests.pipeline.kit import no_spark  # noqa: PLC0415 - 1 s to import

    with no_spark():
        yield


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # of Spark's own code
            # Whichever comes first starts Java, too; a busy machine takes its time for that.
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
