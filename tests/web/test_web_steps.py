"""A job's page has its steps: outcomes, times, durations, and signals."""

from __future__ import annotations

import re
from pathlib import Path

from taskq import TaskQ, durable, retry
from tests.web.browser import browser, program
from tests.web.test_web_api import get
from tests.web.test_web_pages import shown


async def test_steps_are_told_with_state_times_attempt_and_value(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log", durability="os")

    def charge(order: str) -> dict[str, str]:
        return {"receipt": f"<b>{order}</b>", "password": "xyzzy"}

    @app.task(name="order", retry=retry.fixed(2, 0))
    async def order() -> None:
        await durable.step("charge", charge, "a")
        await durable.event("paid", int, timeout="7d")

    async with app:
        job = await order.enqueue()
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
        await app.signal(job, "paid", 5)
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
        async with browser(app.data_dir) as client:
            page = await shown(client, f"/jobs/{job.id}")
        async with program(app.data_dir) as client:
            steps = (await get(client, f"jobs/{job.id}"))["steps"]
    (table,) = re.findall(r'id="steps".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in table.split("</tr>")[:-1]]
    cleaned = "{ &#34;receipt&#34;: &#34;&lt;b&gt;a&lt;/b&gt;&#34;, &#34;password&#34;: (set) }"
    assert rows[0][:2] == ["charge#1", "done"]
    assert rows[0][5:] == ["1", *cleaned.split()]
    assert rows[1][:2] == ["paid#1", "came"]
    assert rows[1][-2:] == ["1", "5"]
    assert table.count("<svg") == len(rows)
    assert "xyzzy" not in page
    assert "signalled" in page
    assert [(step["step"], step["value"]) for step in steps][1] == ("paid#1", "5")
