"""People go anywhere, sort and choose rows, and look back by steps of time."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest

from taskq import TaskQ, chord, progress
from taskq.engine import LogReader
from taskq_plugins.web.pages import code_of
from tests.web.browser import browser
from tests.web.test_web_pages import forms, ids, send_form, shown


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    """Three dead letters of one task, two successes of another, and a job that nobody knows."""
    app = TaskQ(tmp_path, durability="os")

    @app.task(name="mail.send", queue="mail", retry=1)
    async def send(to: str) -> None:
        raise ConnectionError(to)

    @app.task(name="pages.fetch", queue="pages")
    async def fetch(url: str, retries: int = 3) -> str:
        return url

    async with app:
        await send.enqueue_many([("ada",), ("bob",), ("cleo",)])
        await fetch.enqueue_many([("a",), ("b",)])
        await app.enqueue_by_name("reports.build", day="Monday")
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
    return tmp_path


def tabs(page: str) -> dict[str, str]:
    return dict(re.findall(r"<span[^>]*>(\w+)</span> <b>([\d,]+)</b>", page))


async def test_tabs_count_the_jobs_of_each_state_among_those_of_the_names(log: Path) -> None:
    async with browser(log) as client:
        every = tabs(await shown(client, "/jobs"))
        assert (every["all"], every["dead"], every["succeeded"], every["ready"]) == (*"632", "1")
        mail = await shown(client, "/jobs", q="task:=mail.send state:dead")
        assert tabs(mail)["all"] == tabs(mail)["dead"] == "3"
        assert tabs(mail)["succeeded"] == "0"
        tab = re.search(r'<a href="([^"]+)" aria-current="page"><span class="state dead"', mail)
        assert tab is not None
        assert "task%3A%3Dmail.send" in tab[1]
        assert tabs(await shown(client, "/jobs", q="since:2h ada")) == {}  # they take a look at all


async def test_rows_are_sorted_by_a_column_and_then_the_other_way(log: Path) -> None:
    async with browser(log) as client:
        for path, column in (("/jobs", "task"), ("/tasks", "dead"), ("/tasks", "success")):
            down = await follow(client, await shown(client, path), column)
            assert 'aria-sort="descending"' in down
            up = await follow(client, down, column)
            assert 'aria-sort="ascending"' in up
            rows = [re.findall(r"(?:mail\.send|pages\.fetch|reports\.build)</a>", page)
                    for page in (down, up)]  # fmt: skip
            assert rows[0] != rows[1]
            assert sorted(rows[0]) == sorted(rows[1])


async def follow(client: httpx.AsyncClient, page: str, column: str) -> str:
    link = re.search(rf'<a href="([^"]*sort=[^"]*)">{column}</a>', page)
    assert link is not None
    return await shown(client, html.unescape(link[1]))


async def test_chosen_rows_are_requeued_and_no_others(log: Path) -> None:
    async with browser(log, allow_actions=True) as client:
        dead = ids(await shown(client, "/jobs", q="state:dead"))
        assert len(dead) == 3
        succeeded = ids(await shown(client, "/jobs", q="state:succeeded"))[0]
        chosen = [("id", job) for job in (*dead[:2], succeeded)]
        answer = await client.get("/many", params=[*chosen, ("act", "requeue"), ("q", "")])
        assert "Requeue 2 jobs?" in answer.text
        (form,) = forms(answer.text)
        answer = await send_form(client, form)
        list_page = await shown(client, answer.headers["location"])
        assert "Requeued 2 jobs." in list_page
        assert ids(await shown(client, "/jobs", q="state:dead")) == dead[2:]
        assert (await client.get("/many?act=purge")).status_code == 422


async def test_a_few_letters_lead_to_pages_tasks_queues_and_jobs(log: Path) -> None:
    async with browser(log) as client:
        job = ids(await shown(client, "/jobs", q="state:ready"))[0]
        for text, path in (
            ("lim", "/limits"),
            ("fetch", "/jobs?q=task%3A%3Dpages.fetch"),
            ("page", "/jobs?q=queue%3A%3Dpages"),
            (f"`{job}`:", f"/jobs/{job}"),
        ):
            assert f'href="{path}"' in await shown(client, "/go", q=text)
        assert 'href="/failures?at=1"' in await shown(client, "/go", q="fail", at="1")


async def test_steps_of_the_slider_lead_back_to_moments(log: Path) -> None:
    async with browser(log) as client:
        page = await shown(client, "/jobs", q="state:dead")
        assert 'data-slide="now|the first record"' in page
        for back, at in (("-1", "at=1"), ("0", ""), ("-40", "at=1")):
            answer = await client.get("/jobs", params={"q": "state:dead", "back": back})
            assert answer.status_code == 303
            assert answer.headers["location"] == "/jobs?q=state%3Adead" + (f"&{at}" if at else "")
        assert (await client.get("/?back=x")).status_code == 422


async def test_tasks_tell_how_they_fare(log: Path) -> None:
    async with browser(log) as client:
        page = await shown(client, "/tasks")
    rows = dict(
        re.findall(r'<tr><th scope="row"><a [^>]*>([\w.]+)</a></th>(.*?)</tr>', page, re.DOTALL)
    )
    assert set(rows) == {"mail.send", "pages.fetch", "reports.build"}
    assert 'data-label="success">0.0%' in rows["mail.send"]
    assert 'data-label="dead">3<' in rows["mail.send"]
    assert "100.0%" in rows["pages.fetch"]
    assert "/jobs/" in rows["mail.send"]
    assert "<polyline" in rows["pages.fetch"]


async def test_workers_tell_what_each_does_and_which_are_gone(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, upkeep=False, name="shop")
    runs, done = anyio.Event(), anyio.Event()

    @app.task(name="resize")
    async def resize() -> None:
        await progress(0.5, "half of it")
        runs.set()
        await done.wait()

    async with app, app.worker(concurrency=3), browser(tmp_path) as client:
        job = await resize.enqueue()
        await runs.wait()
        while await job.progress() is None:  # a thread of its own writes it down
            pass
        page = await shown(client, "/workers")
        assert f'href="/jobs/{job.id}"' in page
        assert re.search("1 of 3 in use", page)
        assert "half of it" in page
        assert re.search(r"memory</dt><dd>[\d.]+ MiB", page)
        assert "Python 3." in page
        assert "Gone today" not in page
        done.set()
    async with browser(tmp_path) as client:
        page = await shown(client, "/workers")
        assert "Gone today" in page
        assert "shop</th>" in page


async def test_arguments_are_a_table_where_they_are_flat_and_code_that_enqueues_them(
    log: Path,
) -> None:
    async with browser(log) as client:
        (dead,) = ids(await shown(client, "/jobs", q="state:dead cleo"))
        page = html.unescape(await shown(client, f"/jobs/{dead}"))
    assert "await send.enqueue(to='cleo')" in page
    assert re.search(r">to</th><td[^>]*><code>\"cleo\"</code>", page)


@pytest.mark.parametrize(
    ("task", "payload", "code"),
    [
        ("a.b-c", b'{"x":1}', "await b_c.enqueue(x=1)"),
        ("import", b'{"*":[1,"a"],"**":{"y":null}}', "await import_.enqueue(1, 'a', y=None)"),
        ("", b"bytes", ""),
        ("long", b'{"x":"%s"}' % (b"x" * 9_999), ""),
    ],
)
async def test_code_is_python_whatever_a_task_is_called(
    log: Path, task: str, payload: bytes, code: str
) -> None:
    with LogReader.open(str(log)) as reader:
        job = reader.jobs(None, None, None, 1)[0]
    assert code_of(replace(job, task=task, payload=payload), dict) == code


async def test_the_code_of_a_callback_is_that_of_a_step(tmp_path: Path) -> None:
    async with TaskQ(tmp_path, durability="os") as app:

        @app.task(name="total")
        def total(counts: list[int], letter: str) -> int:
            return sum(counts)

        @app.task(name="count")
        def count(page: str) -> int:
            return len(page)

        flow = chord([count.call("a"), count.call("b")], total.step(letter="h"))
        last = (await flow.enqueue()).id
    async with browser(tmp_path) as client:
        page = html.unescape(await shown(client, f"/jobs/{last}"))
    assert "<code>total.step(letter='h')</code>" in page
