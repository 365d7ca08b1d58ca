"""Pictures of the page: a flow whose lines cross no other box, the last hour, and steps."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from taskq import TaskQ, chain, durable, retry
from taskq.core.model import State
from taskq.core.views import AttemptView, JobView
from taskq.log.read.reader import LogReader
from taskq_plugins.looks.reading import bars_of, graph_of, lay_out
from tests.web.browser import browser, program
from tests.web.test_web_api import get
from tests.web.test_web_pages import shown


@st.composite
def flows(draw: st.DrawFn) -> dict[int, tuple[int, ...]]:
    count = draw(st.integers(2, 12))
    return {
        number: tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=4))))
        if number
        else ()
        for number in range(count)
    }


@given(flows())
def test_lines_lead_between_columns_or_across_one(inputs: dict[int, tuple[int, ...]]) -> None:
    places, steps = lay_out(inputs)
    boxes = set(places.values())
    assert len(boxes) == len(inputs)
    for start, end in steps:
        if start == end:
            assert start not in boxes
        else:
            assert end[0] == start[0] + 1
    # Each job is reached from its inputs, and from nothing else.
    for number, before in inputs.items():
        ends = {places[number]}
        sources = set()
        while ends:
            ends = {start for start, end in steps if end in ends and start != end}
            sources |= ends & boxes
            ends -= boxes
        assert sources == {places[first] for first in before}
        assert all(places[first][0] < places[number][0] for first in before)


def test_a_line_joins_the_right_edge_of_a_box_to_the_left_edge_of_the_next(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, durability="os")
    flow = chain(app.call_by_name("pack"), app.call_by_name("send"))
    job = app.enqueue_flow_sync(flow).id
    app.close_sync()
    with LogReader.open(str(tmp_path)) as reader:
        graph = graph_of(reader, reader.parse_id(job))
    assert graph is not None
    (first, second), (line,) = sorted(graph.nodes, key=lambda node: node.x), graph.lines
    assert line[::2] == (first.x + 200, second.x)


def test_a_job_of_one_moment_has_a_bar() -> None:
    attempt = AttemptView(number=1, owner=7, started_ns=7, ended_ns=7, outcome="succeeded")
    job = JobView(
        lsn=1, job_id="a-1", queue="mail", task="send", priority=5, state=State.SUCCEEDED,
        attempt=1, attempts_max=1, enqueued_ns=7, settled_ns=7, attempts=(attempt,),
    )  # fmt: skip
    assert [bar.width > 0 for bar in bars_of(job, 9)] == [True]


async def test_steps_have_state_times_attempt_and_value(tmp_path: Path) -> None:
    app = TaskQ(tmp_path / "log", durability="os")

    def charge(order: str) -> dict[str, str]:
        return {"receipt": f"<b>{order}</b>", "password": "xyzzy"}

    @app.task(name="order", retry=retry.fixed(2, 0))
    async def order() -> None:
        await durable.step("charge", charge, "a")
        await durable.event("paid", int, timeout="7d")

    async with app:
        job = await order.enqueue()
        await app.worker(burst=True).run()
        await app.signal(job, "paid", 5)
        await app.worker(burst=True).run()
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
