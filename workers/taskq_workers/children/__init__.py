"""Child processes run jobs one by one: ``runner`` is for the worker, ``inside`` for the child."""
