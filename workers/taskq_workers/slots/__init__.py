"""Run one job after the other in slots: claimed ahead, called, and settled in batches.

``hands`` says what they ask of gates, and what a worker asks of whoever runs its jobs. The hot path
is ``slot``; all of it is bare asyncio, since a cancel scope or a task for each job would cost more
than the job. Begin with ``slot``, then ``slots``.
"""
