"""Tables as Delta Lake has them, each in a directory of its name; no Spark."""

from __future__ import annotations

from taskq_plugins.spark.lake.store import Batch, Change, Lake, LakeWriter

__all__ = ["Batch", "Change", "Lake", "LakeWriter"]
