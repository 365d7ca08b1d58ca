"""The source's columns as Spark knows them, and as it must be given them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from taskq.arrow import AS_BYTES, DETAILS, SCHEMA, as_bytes
from taskq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(*, details: bool, binary: bool = False) -> StructType:
    ours = DETAILS if details else SCHEMA
    schema: StructType = from_arrow_schema(as_bytes(ours) if binary else ours)
    return schema


def arrow_schema(wanted: StructType) -> pa.Schema:
    """Return the columns that Spark asks for, as batches must have them to the letter.

    Raises:
        UsageError: a column is not one of the source's, or has another type there.
    """
    schema = to_arrow_schema(wanted, timezone="UTC")
    for field in schema:
        if field.name not in DETAILS.names:
            raise UsageError(
                f"the schema asks for column {field.name!r}, which the source taskq does not have: "
                f"it has {', '.join(DETAILS.names)}"
            )
        ours = DETAILS.field(field.name)
        as_bytes_too = field.name in AS_BYTES and field.type.equals(pa.binary())
        if not field.type.equals(ours.type) and not as_bytes_too:
            raise UsageError(
                f"the schema asks for column {field.name!r} as {field.type}, but it is {ours.type}"
            )
    return schema
