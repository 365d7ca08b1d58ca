"""Running a log's jobs on Spark's executors."""
