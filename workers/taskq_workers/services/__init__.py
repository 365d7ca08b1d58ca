"""Services run beside the jobs of a worker, each in a task of the worker's own."""
