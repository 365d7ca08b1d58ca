from __future__ import annotations

import pytest

from taskq_plugins.spark.run.errors import failure

DAMAGED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "/x/decoder.py", line 1, in decode
taskq.arrow.problems.SegmentDamaged: /1.log: no frame, corruptMode=skip reads on

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException
"""
LOST = """pyspark.errors.exceptions.base.PySparkRuntimeError: x
taskq_plugins.spark.source.positions.DataLoss: a: gone; with the option failOnDataLoss=false it goes
"""
FULL = """[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure
org.apache.spark.SparkException: Job aborted
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes
"""


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (DAMAGED, r"^/1.log: no frame, --corrupt skip reads on; nothing of it was committed"),
        (LOST, r"^a: gone; with --ignore-data-loss it goes; nothing"),
        (FULL, r"^Spark stopped the run \(Caused by: java.io.IOException: No space left on devic"),
        ("\n", r"no reason was given"),
        ("strange", r"\(strange\)"),
    ],
)
def test_of_spark_s_tracebacks_the_reason_is_told(text: str, remedy: str) -> None:
    with pytest.raises(type(failure("x")), match=remedy) as error:
        raise failure(text)
    assert "Traceback" not in str(error.value)
    assert "\n" not in str(error.value)
