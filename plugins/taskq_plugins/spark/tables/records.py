"""The records of the logs as they are kept: each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What makes a record one of its own. A gap's row has the number of the first record that it may
#: have held, and that one may have been salvaged.
_ONE: Final = ("log_id", "epoch", "lsn", "is_damage")
#: Of copies of a record that of the first device is kept, so that every run keeps the same.
_FIRST: Final = ("device", "segment", "offset")
_DAMAGED: Final = "damaged"


def records(batch: DataFrame) -> DataFrame:
    """The rows without those that tell of a record again.

    The source gives each record of a log once; there are more where a log's directory was copied.

    Args:
        batch: columns DETAILS of the source.

    Returns:
        The same columns.
    """
    is_damage = F.coalesce(F.col("kind") == _DAMAGED, F.lit(False))
    order = Window.partitionBy(*_ONE).orderBy(*_FIRST)
    numbered = batch.withColumn("is_damage", is_damage).withColumn(
        "copy", F.row_number().over(order)
    )
    return numbered.where("copy = 1").drop("copy", "is_damage")
