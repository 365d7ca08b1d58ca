"""Run one job after the other in slots: claimed ahead, called, and settled in batches.

The hot path is ``slots``; all of it uses asyncio directly, since a cancel scope or a task for each
job would cost more than the job.
"""
