"""Calls of one job's function, and their resources from the app.

Executors call functions on the loop, in threads or in children, within time limits; lifespans
provide resources; the loader finds the app. Knows nothing of slots. Begin with ``executors``.
"""
