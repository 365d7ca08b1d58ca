"""The commands ``taskq pipeline …``. Importing this package imports neither Spark nor Arrow."""

from __future__ import annotations

from taskq_plugins.spark.cli.group import pipeline

__all__ = ["pipeline"]
