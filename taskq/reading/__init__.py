"""The log read as a log: records, streams, named readers, replay and dead letters.

Begin with ``stream``. May import schedules and what stands below it, never flows.
"""
