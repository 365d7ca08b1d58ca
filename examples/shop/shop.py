# shop.py
from pathlib import Path

from taskq import Discard, TaskQ, durable, retry

app = TaskQ("./shop-data")  # the queue is this directory


def write(file: str, line: str) -> None:
    """Append a line: a file stands for the mail server, the bank and the van."""
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")


@app.task(retry=retry.exponential(attempts=5, base="1m"))
def send_receipt(order: str) -> None:
    if Path("mail-is-down").exists():
        raise ConnectionError("the mail server is away")
    write("mails.txt", f"receipt of order {order}")


@app.cron("0 20 * * *", tz="Europe/Berlin")
@app.task
def evening_report() -> int:
    return len(Path("mails.txt").read_text().splitlines())


def charge(order: str) -> str:
    write("bank.txt", f"{order} charged, key {durable.key()}")  # a bank takes each key once
    return f"receipt of {order}"


def refund(order: str) -> None:
    write("bank.txt", f"{order} refunded")


@app.task(retry=5)
def pack(article: str) -> str:
    return f"a box of {article}"


def ship(boxes: list[str], address: str) -> str:
    if Path("van-is-broken").exists():
        raise OSError("the van has broken down")
    write("van.txt", f"{' and '.join(boxes)} to {address}")
    return Path("van.txt").read_text().splitlines()[-1]


@app.task(retry=5)
async def order(name: str, articles: list[str]) -> str:
    await durable.step("charge", charge, name)
    async with durable.undo("refund", refund, name):
        try:
            address = await durable.event("address", str, timeout="7d")
        except durable.EventTimeout:
            raise Discard("no address within a week") from None
        boxes = await durable.call([pack.call(article) for article in articles])
        policy = retry.fixed(attempts=3, delay="5m")  # tries of the step, not of the job
        return await durable.step("ship", ship, boxes, address, retry=policy)
