"""Services of a worker besides its jobs, each in a task of the worker."""
