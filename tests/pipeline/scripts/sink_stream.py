"""A stream of files into the sink, until all are read: sink_stream.py ROWS DATA_DIR CHECKPOINT."""

from __future__ import annotations

import sys

from taskq_plugins.spark.session import spark_session


def main(rows: str, data_dir: str, checkpoint: str) -> None:
    with spark_session("sink torture", master="local[2]") as spark:
        source = spark.readStream.schema("n long").option("maxFilesPerTrigger", "1")
        query = (
            source.parquet(rows)
            .repartition(3)
            .writeStream.format("taskq")
            .options(path=data_dir, task="t", checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
