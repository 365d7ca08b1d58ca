"""Tables as Parquet files that a manifest names; no Spark."""
