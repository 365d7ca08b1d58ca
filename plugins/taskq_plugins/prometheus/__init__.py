"""Metrics of a task log and of workers for Prometheus, by prometheus-client; no Spark.

``command`` is ``taskq metrics``. ``serving`` has the metrics and answers scrapes, also for
``taskq worker --metrics-port``.
"""
