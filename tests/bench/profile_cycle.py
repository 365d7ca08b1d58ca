"""Where the time of a full cycle goes, thread by thread.

Run: ``python -m tests.bench.profile_cycle [CONTENDER] [PRODUCERS] [JOBS] [LINES]``. First a run
as it is: processor time of each thread. Then one under cProfile, a profile a thread: it makes
small functions look dearer than they are, so read its figures as an order, and calls a job as a
count. (A sampling thread was tried: it gets the GIL only where the others give it up, and sees
nothing else.)
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import pstats
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from tests.bench.one import Sample, full_cycle, make

#: Threads with less work a job than this are left out.
IDLE_MICROSECONDS: Final = 0.2


def threads_seconds() -> dict[str, float]:
    """Processor time of each living thread by name (Linux)."""
    spent = {}
    for thread in threading.enumerate():
        schedstat = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            spent[thread.name] = int(schedstat.read_text(encoding="ascii").split()[0]) / 1e9
    return spent


class Profiles:
    """A profile of each thread that starts while it is on, and of the one that calls ``start``."""

    def __init__(self) -> None:
        self.taken: dict[str, cProfile.Profile] = {}

    def start(self) -> None:
        """Profile this thread and those to come."""
        threading.setprofile(self._enter)
        self._enter()

    def stop(self) -> None:
        """End this thread's profile; the others ended with their threads."""
        threading.setprofile(None)
        self.taken[threading.current_thread().name].disable()

    def _enter(self, *_: Any) -> None:
        profile = cProfile.Profile()
        self.taken[threading.current_thread().name] = profile
        # It takes the place of this very function in the thread that called it.
        profile.enable()

    def print(self, jobs: int, lines: int) -> None:
        """Own time of the dearest functions of each thread, and calls a job."""
        for name, profile in self.taken.items():
            profile.disable()
            rows = []
            stats: Any = pstats.Stats(profile)
            for (file, line, function), (_, calls, own, *_) in stats.stats.items():
                where = f"{Path(file).name}:{line} {function}" if line else function
                rows.append((own / jobs * 1e6, calls / jobs, where))
            if sum(own for own, _, _ in rows) < IDLE_MICROSECONDS:
                continue
            print(f"\nthread {name}: own µs/job, calls/job")
            for own, calls, where in sorted(rows, reverse=True)[:lines]:
                print(f"  {own:7.3f}  {calls:7.3f}  {where}")


async def cycle(name: str, producers: int, jobs: int, directory: Path) -> Sample:
    """Return one full cycle, with the processor time of each thread when it runs unprofiled."""
    contender = make(name, "fsync", directory)
    await contender.open()
    before = threads_seconds()
    sample = await full_cycle(contender, jobs, producers)
    after = threads_seconds()
    print(f"{jobs / sample.seconds:,.0f} jobs/s, {sample.batches:,} batches; processor µs/job:")
    for thread, seconds in after.items():
        print(f"  {(seconds - before.get(thread, 0)) / jobs * 1e6:7.3f}  {thread}")
    await contender.close()
    return sample


def main() -> None:
    """Measure and print."""
    given = sys.argv[1:]
    name, producers, jobs, lines = (*given, *("taskq", "1000", "50000", "30")[len(given) :])
    print(f"{name}, {producers} producers, as it is: ", end="")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        asyncio.run(cycle(name, int(producers), int(jobs), Path(directory)))
    print("\nunder cProfile: ", end="")
    profiles = Profiles()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        profiles.start()
        asyncio.run(cycle(name, int(producers), int(jobs), Path(directory)))
        profiles.stop()
    profiles.print(int(jobs), int(lines))


if __name__ == "__main__":
    main()
