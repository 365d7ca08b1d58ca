"""What runs beside the jobs of a worker, each a task of the worker's own; see ``service``."""
