"""What Spark finds by this module's name, so that ``spark.read.format("taskq")`` just works.

Every Spark session imports it that reads any Python data source, so it imports next to nothing.
"""

from taskq_plugins.spark.source.source import TaskqSource as DefaultSource

__all__ = ["DefaultSource"]
