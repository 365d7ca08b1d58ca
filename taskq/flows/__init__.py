"""Jobs that wait for one another: chains, groups and chords.

Begin with ``building``; ``plan`` is what a flow becomes in the log, ``handle`` the hold on it. May
import schedules and what stands below it, never reading.
"""
