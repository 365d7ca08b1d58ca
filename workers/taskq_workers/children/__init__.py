"""Child processes that run jobs one by one: ``runner`` says which, ``inside`` is their inside."""
