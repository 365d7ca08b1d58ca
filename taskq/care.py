"""What TaskLog and TaskQ have in common: keeping their log in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskq.core.durations import seconds

if TYPE_CHECKING:
    from taskq.connection import Connection
    from taskq.core.durations import Duration
    from taskq.core.model import CompactReport


class LogCare:
    """Compaction and adoption by hand; workers do both by themselves."""

    _connection: Connection

    async def compact(
        self, *, keep: Duration | None = None, dry_run: bool = False
    ) -> CompactReport:
        """Remove the oldest segments as far as the log's policy allows, beside live processes.

        What is needed of them is written again first: unsettled jobs, dead letters, held keys and
        what is kept of finished jobs. The segment that is written to now always stays.

        Args:
            keep: how long finished jobs are kept, instead of what the log says.
            dry_run: change nothing, and tell what would be done.

        Raises:
            LogError: the log could not be written, or another process is at it for too long.
        """
        limit = None if keep is None else seconds(keep, "keep")
        port = await self._connection.port()
        report: CompactReport = await port.compact(limit, dry_run=dry_run)
        return report

    def compact_sync(self, *, keep: Duration | None = None, dry_run: bool = False) -> CompactReport:
        """Do as ``compact``, blocking this thread."""
        limit = None if keep is None else seconds(keep, "keep")
        port = self._connection.store().thread_port
        report: CompactReport = port.compact(limit, dry_run=dry_run).result()
        return report

    async def adopt(self) -> int:
        """Enqueue the jobs of all uploads that were published (``taskq.log.inbox``).

        Workers do it by themselves; this is for whoever wants to see it done. If another process is
        at it, this waits until nothing is left. Adopting needs no worker, and no other process.

        Returns:
            Jobs that came into being through this process meanwhile.

        Raises:
            UploadDamaged: an upload was refused; all others were adopted.
            LogError: the log could not be written; what was adopted stands, and the rest waits.
        """
        port = await self._connection.port()
        jobs: int = await port.adopt()
        return jobs

    def adopt_sync(self) -> int:
        """Do as ``adopt``, blocking this thread."""
        jobs: int = self._connection.store().thread_port.adopt().result()
        return jobs
