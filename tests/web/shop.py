"""A shop's jobs, some of which fail, for the pictures; with ``past`` an hour that has passed.

``TASKQ_DATA_DIR`` is the log; no mail is sent before there is a file ``…mail-is-up`` beside it.
"""

import asyncio
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any

from taskq import TaskQ, chain, chord, progress, retry
from taskq.conditions import condition
from taskq.testing import TravelClock, use_clock

app = TaskQ(durability="os")
app.breaker("payments", failures=3, pause="1h", pause_max="1h")


def _is_there(name: str) -> bool:
    return Path(f"{app.data_dir}.{name}").exists()


def vpn_is_up() -> bool:
    return _is_there("vpn-is-up")


@app.task(name="mail.send", queue="mail", retry=retry.fixed(2, 0), keep_log="4KB")
async def send(to: str, subject: str) -> str:
    logging.getLogger("mail").info("connecting for %s", to)
    if not _is_there("mail-is-up"):
        raise ConnectionError("the mail server is away")
    return f"{subject} went to {to}"


@app.task(name="images.resize", queue="images", concurrency=2)
async def resize(path: str, width: int) -> dict[str, int]:
    for step in range(1, 600):
        await progress(step / 600, f"row {step} of 600")
        await asyncio.sleep(0.5)
    return {"width": width}


@app.task(name="payments.charge", queue="payments", retry=retry.fixed(5, "1h"))
async def charge(order: int, cents: int) -> None:
    raise TimeoutError(f"no answer for order {order}")


@app.task(name="orders.import", queue="orders", retry=1, rate="60/min")
async def load(row: dict[str, str]) -> int:
    return int(row["quantity"])


@app.task(name="notes.sync", requires=[condition(vpn_is_up, name="the VPN is up")])
async def sync_notes() -> None: ...


@app.task(name="pages.fetch", queue="pages")
async def fetch(url: str) -> str:
    return f"<h1>{url}</h1>"


@app.task(name="pages.count", queue="pages")
async def count(page: str) -> int:
    return len(page)


@app.task(name="pages.total", queue="pages")
async def total(counts: list[int]) -> int:
    return sum(counts)


@app.cron("30 6 * * MON-FRI", tz="Europe/Berlin", name="morning report")
@app.task(name="reports.build")
async def build_report() -> None: ...


@app.every("1h", name="tidy up")
@app.task(name="files.tidy")
async def tidy() -> None: ...


async def fill() -> None:
    async with app:
        await app.pause("newsletter")
        await send.options(queue="newsletter").enqueue_many(
            [(f"reader{number}@example.org", "This week's news") for number in range(40)]
        )
        await send.enqueue_many(
            [(f"customer{number}@example.org", f"Your order {number}") for number in range(12)]
        )
        await resize.enqueue_many([(f"/pictures/{number}.jpg", 800) for number in range(5)])
        await charge.enqueue_many([(number, 1_999) for number in range(8)])
        rows = [{"quantity": text} for text in ("3", "14", "many", "1", "two", "7")]
        await load.enqueue_many([(row,) for row in rows])
        await sync_notes.enqueue()
        await chord(
            [chain(fetch.call(url), count.step()) for url in ("a.example", "b.example")],
            total.step(),
        ).enqueue()
        await send.options(delay="2h", priority=8, headers={"trace": "4bf92f35"}).enqueue(
            "ada@example.org", "Later, but first"
        )
        await app.enqueue_by_name("invoices.print", number=4711)


async def live(minutes: int = 60) -> None:
    """Let each minute pass with jobs of its own, and two that are busier."""
    chance, clock = random.Random(7), TravelClock(time.time() - minutes * 60)
    past = TaskQ(app.data_dir, durability="os", name="shop")
    use_clock(past, clock)

    def task(name: str, seconds: float, fails: float, error: Exception, **options: Any) -> Any:
        def work(**_given: Any) -> None:
            clock.advance(chance.uniform(seconds / 5, seconds))
            if chance.random() < fails:
                raise error

        return past.task(name=name, queue=name.partition(".")[0], **{"retry": 1, **options})(work)

    away = ConnectionError("the mail server is away")
    mail = task("mail.send", 0.4, 0.06, away, retry=retry.fixed(2, 0))
    page = task("pages.fetch", 1.5, 0.05, TimeoutError("no answer in 30 s"))
    invalid = ValueError("invalid literal for int() with base 10: 'many'")
    row = task("orders.import", 0.05, 0.04, invalid)
    async with past:
        for minute in range(minutes):
            begun_ns, many = clock.wall_ns(), 10 + 20 * (25 < minute < 33) + chance.randrange(10)
            to = "customer{}@example.org".format
            calls = [mail.call(to=to(n), subject="Your order") for n in range(many)]
            calls += [page.call(url=f"https://{n}.example") for n in range(many // 3)]
            calls += [row.call(row={"quantity": n}) for n in range(many // 4)]
            await past.enqueue_many(calls)
            await past.worker(burst=True, concurrency=1).run()
            clock.advance(max(60 - (clock.wall_ns() - begun_ns) / 1e9, 0))


if __name__ == "__main__":
    asyncio.run(live() if sys.argv[1:] == ["past"] else fill())
