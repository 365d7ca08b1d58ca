"""Gates hold jobs back: conditions that do not hold, and circuit breakers of queues.

Begin with ``gate``, the common base of both kinds; ``gates`` has all gates of one worker.
"""
