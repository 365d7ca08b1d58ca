"""Module that Spark looks up by this name, so that ``spark.read.format("taskq")`` works.

Every Spark session with a Python data source imports it, so it imports next to nothing.
"""

from taskq_plugins.spark.data_source import TaskqSource as DefaultSource

__all__ = ["DefaultSource"]
