"""Spark sessions that listen on loopback only and keep their files to themselves."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK: Final = "127.0.0.1"


def open_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The process's session, made anew if there is none.

    Args:
        name: what Spark calls the application.
        master: such as ``local[2]`` or ``spark://host:7077``; all cores of this machine if None.
        conf: further settings, which win over ours.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    work_dir = tempfile.mkdtemp(prefix="taskq-spark-")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.local.dir": work_dir,
        "spark.sql.warehouse.dir": f"{work_dir}/warehouse",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
