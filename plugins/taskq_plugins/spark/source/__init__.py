"""The source of ``spark.read.format("taskq")``."""
