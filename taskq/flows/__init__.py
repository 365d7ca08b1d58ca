"""Jobs that wait for one another: chains, groups and chords.

Begin with ``flow``; ``handle`` waits for a flow, ``inputs`` gives results to steps. May import
schedules and the rooms below it, never reading.
"""
