"""A shop's jobs, some of which fail: what the tests in a browser and the pictures look at.

``TASKQ_DATA_DIR`` is the log; no mail is sent before there is a file ``…mail-is-up`` beside it.
"""

import asyncio
import logging
from pathlib import Path

from taskq import TaskQ, chain, chord, progress, retry
from taskq.conditions import condition

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


if __name__ == "__main__":
    asyncio.run(fill())
