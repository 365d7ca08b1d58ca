"""Metrics of a task log and of workers for Prometheus, by prometheus-client; no Spark.

``families`` says what is told and where from, ``command`` is ``taskq metrics``, ``serving`` is what
``taskq worker --metrics-port`` starts.
"""
