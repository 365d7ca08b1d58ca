"""The data source ``taskq`` for Spark, with late imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from taskq_plugins.spark.source.options import ReadOptions
    from taskq_plugins.spark.source.rows import RowReader


class TaskqSource(DataSource):
    """Task logs as a table of their records, and data frames as jobs."""

    @classmethod
    def name(cls) -> str:
        return "taskq"

    def schema(self) -> StructType:
        from taskq_plugins.spark.source.options import read_options  # noqa: PLC0415
        from taskq_plugins.spark.source.readers import spark_schema  # noqa: PLC0415

        options = read_options(self.options)
        return spark_schema(details=options.include_details)

    def reader(self, schema: StructType) -> DataSourceReader:
        from taskq_plugins.spark.source.readers import BatchReader  # noqa: PLC0415

        return BatchReader(*self._read(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from taskq_plugins.spark.source.readers import StreamReader  # noqa: PLC0415

        return StreamReader(*self._read(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from taskq_plugins.spark.sink.writers import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from taskq_plugins.spark.sink.writers import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite)

    def _read(self, schema: StructType) -> tuple[ReadOptions, RowReader]:
        from taskq_plugins.spark.source.options import read_options  # noqa: PLC0415
        from taskq_plugins.spark.source.readers import arrow_schema  # noqa: PLC0415
        from taskq_plugins.spark.source.rows import RowReader  # noqa: PLC0415

        options = read_options(self.options)
        reading = RowReader(
            arrow_schema(schema),
            options.corrupt_mode == "skip",
            options.fail_on_data_loss != "false",
        )
        return options, reading
