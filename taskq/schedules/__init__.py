"""When schedules tick, and what the log knows of them.

``times`` reads cron expressions and intervals, ``view`` lists, pauses and resumes what ticks.
Declaring schedules is ``taskq.app.schedules``. May import connection and what stands below it.
"""
