"""Read a log's records: streams, named readers, replay and dead letters.

Begin with ``stream``. The package may import schedules and lower layers, never flows.
"""
