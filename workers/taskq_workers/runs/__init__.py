"""How one job's function is called, and what a worker needs of its app for that.

Executors call functions on the loop, in threads or in children, within time limits; lifespans give
them what they take; the loader finds the app. Knows nothing of slots. Begin with ``executors``.
"""
