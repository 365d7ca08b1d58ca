"""Jobs that wait for one another: chains, groups and chords.

Begin with ``flow``; ``handle`` waits for a flow, ``inputs`` passes results to steps. The package
may import schedules and the rooms below it, never reading.
"""
