"""Tables as Parquet files that a manifest names; no Spark."""

from __future__ import annotations

from taskq_plugins.spark.lake.manifest import OPEN, OVER, Change, Manifest
from taskq_plugins.spark.lake.store import Lake, LakeWriter

__all__ = ["OPEN", "OVER", "Change", "Lake", "LakeWriter", "Manifest"]
