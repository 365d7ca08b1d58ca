"""Gates keep jobs back for now: conditions that do not hold, and queues that back off.

Begin with ``gate``, the common part of both kinds; ``gates`` holds all of one worker.
"""
