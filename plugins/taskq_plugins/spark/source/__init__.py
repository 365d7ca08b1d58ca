"""What ``spark.read.format("taskq")`` reads."""
