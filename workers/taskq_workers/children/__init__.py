"""Child processes run jobs one by one: ``runner`` is the worker's side, ``inside`` the child's."""
