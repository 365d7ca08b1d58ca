"""A Celery app, and the same app on taskq."""
