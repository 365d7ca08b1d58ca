"""Headers by which a job tells that a schedule enqueued it."""

from __future__ import annotations

from typing import Final

#: The name of the schedule.
SCHEDULE_HEADER: Final = "taskq-schedule"
#: The moment that the tick stands for, in ISO 8601 with the offset of the schedule's zone.
MOMENT_HEADER: Final = "taskq-scheduled-at"
