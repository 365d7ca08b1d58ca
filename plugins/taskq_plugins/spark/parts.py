"""How the rows of a table are divided, in words that need no package of a lake."""

from __future__ import annotations

from typing import Final

#: The column that tables are partitioned by: a day, UTC.
DATE: Final = "date"
#: What Spark calls the directory of a part: ``part=over``.
PART_COLUMN: Final = "part"
#: Parts of a table: rows that nothing can change any more, and those that a batch may replace.
#: Readers see no difference: it is the first word of a file's name.
OVER: Final = "over"
OPEN: Final = "open"
DEAD: Final = "dead"
#: The ``kind`` of a row that stands for a stretch of a log that was read: from the beginning of
#: ``segment`` up to ``lsn``, whose record was of ``ts_ns``.
POSITION: Final = "position"
#: Header that links a job to the one that it runs again.
REPLAY_OF: Final = "replay_of"
