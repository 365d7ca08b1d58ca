"""A backlog worked off by Spark's executors: ``taskq worker APP --executor spark``.

One process, the driver, claims jobs as any worker does and settles them in batches; the functions
run on executors, which never open the log. Importing this package imports no Spark.

Jobs run at least once. When the driver dies, its jobs are claimed again at once by anybody, while
an executor may still be busy with them for a moment. When an executor dies, what it had is given
back and run one by one, until it shows which job kills executors: that one uses up its attempts.
"""
