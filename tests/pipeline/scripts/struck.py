"""``taskq`` in the session of another process, killed with -9 at a step of its own.

python struck.py NTH PORT SECRET WORDS…
"""

import os
import signal
import sys
from functools import wraps
from itertools import count
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from taskq.cli.main import main
from taskq_plugins.spark.lake.files import Folder
from taskq_plugins.spark.lake.store import LakeWriter
from taskq_plugins.spark.run import frames

#: Calls that change the lake, or let executors do so.
STEPS = [
    (Folder, "write"),
    (frames, "gathered"),
    *((LakeWriter, name) for name in ("commit", "write", "note", "upkeep", "vacuum", "_sync")),
]


def strike_at(nth: int) -> None:
    steps = count(1)

    def step() -> None:
        if next(steps) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def striking(real: Any) -> Any:
        @wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            step()
            result = real(*args, **options)
            step()
            return result

        return call

    for owner, name in STEPS:
        setattr(owner, name, striking(getattr(owner, name)))


def connect(port: str, secret: str) -> None:
    os.environ |= {"PYSPARK_GATEWAY_PORT": port, "PYSPARK_GATEWAY_SECRET": secret}
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call,unused-ignore]
    spark = gateway.jvm.org.apache.spark
    context = spark.api.java.JavaSparkContext.fromSparkContext(spark.SparkContext.getOrCreate())
    SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf()))


connect(*sys.argv[2:4])
strike_at(int(sys.argv[1]))
main(sys.argv[4:])
