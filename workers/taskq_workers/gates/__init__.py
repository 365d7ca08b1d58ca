"""What keeps jobs back for now: conditions that do not hold, and queues that back off.

Begin with ``gate``, what both kinds share; ``gates`` holds all of one worker.
"""
