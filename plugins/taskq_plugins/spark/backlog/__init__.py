"""Run jobs on Spark's executors: ``taskq worker APP --executor spark``.

One process, the driver, claims jobs like any worker and settles them in batches. The functions run
on executors, which never open the log. Importing this package imports no Spark.

Jobs run at least once. When the driver dies, other workers claim its jobs at once, while an
executor may still run them for a moment. When an executor dies, its jobs are released and run one
by one, so that only a job that kills executors uses up its attempts.
"""
