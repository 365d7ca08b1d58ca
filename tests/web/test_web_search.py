"""Searches, filters, choices and the slider of the page."""

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from taskq import JobHandle, TaskQ, retry
from taskq.engine import LogReader
from taskq.errors import JobFailed
from taskq.reading import search
from taskq.reading.search import Search
from taskq_plugins.looks.reading import Looks
from taskq_plugins.web import api
from taskq_plugins.web.pages import code_of
from tests.web.browser import browser
from tests.web.test_web_pages import forms, ids, send_form, shown
from tests.workers.fakes import Held

COUNT = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    app = TaskQ(tmp_path_factory.mktemp("search") / "data", durability="os", upkeep=False)
    for number in range(COUNT):
        call = app.call_by_name("mail.send", to=f"user {number}").options(queue="mail.out")
        app.enqueue_sync(call.options(key=f"letter-{number}", priority=number % 2))
    login = {"user": "ada", "pin": {"of": "1234"}}
    order = {"id": 7, "of": [9]}
    cut = app.call_by_name("films.cut", order=order, login=login, password="s3cret")  # noqa: S106
    app.enqueue_sync(cut.options(headers={"tenant": "acme", "token": "t0ken"}))
    app.close_sync()
    return app.data_dir


@pytest.fixture
def reader(data: Path) -> Iterator[LogReader]:
    with LogReader.open(str(data)) as reader:
        yield reader


@pytest.mark.parametrize(("query", "count"), [
    ("task:send", COUNT),
    ("task:mail.send", COUNT),
    ("task:films", 1),
    ("task:=mail.send", COUNT),
    ("task:=send", 0),
    ("queue:=mail.out task:=mail.send", COUNT),
    ("queue:=mail", 0),
    ("task:nothing", 0),
    ("queue:mail", COUNT),
    ("queue:out task:send", COUNT),
    ("key:letter-7", 1),
    ("key:letter-", COUNT),
    ("priority:1 task:send", COUNT // 2),
    ('"user 7"', 1),
    ("took:>1s", 0),
    ("state:ready", COUNT + 1),
    ("state:ready,dead", COUNT + 1),
    ("key:=letter-7 key:=letter-8", 2),
    ("queue:=mail.out queue:=default", COUNT + 1),
    ('arg.to:="user 7"', 1),
    ("arg.to:7", 3),
    ("arg.to:=7", 0),
    ("arg.order.id:=7", 1),
    ("arg.order:9", 1),
    ("arg.password:s3cret", 0),
    ("arg.password:set", 1),
    ("arg.login.pin.of:1234", 0),
    ("arg.login.user:=ada", 1),
    ("arg.login:1234", 0),
    ("header.tenant:=acme", 1),
    ("tag.tenant:=acme tag.tenant:=other arg.order.id:7", 1),
    ("header.token:t0ken", 0),
    ("arg.nothing:1", 0),
])  # fmt: skip
def test_properties_and_parts_of_names_are_understood(
    reader: LogReader, query: str, count: int
) -> None:
    assert len(Search.parse(query).find(reader, 100, 0).jobs) == count


@pytest.mark.parametrize("text", ["http://host/x", '"to: you"', "10:30", "12:30:11"])
def test_text_with_a_colon_is_text(text: str) -> None:
    assert Search.parse(text).words == (text.strip('"'),)


@pytest.mark.parametrize("form", ["{id}", " {id}: ", "{end}", "-{end}", "[{id}],", "#{id}"])
def test_an_id_opens_its_job_however_it_was_copied(reader: LogReader, form: str) -> None:
    (job,) = Search.parse("task:films").find(reader, 1, 0).jobs
    copied = form.format(id=job.job_id, end=job.lsn)
    assert Search.job_named(reader, copied) == (None if "#" in form else job.job_id)
    texts = ("", "mail", "999999999", "1 2", "-", '"7"')
    assert {Search.job_named(reader, text) for text in texts} == {None}


async def test_a_page_leads_to_the_job_that_an_id_names(data: Path) -> None:
    async with browser(data) as client:
        page = await shown(client, "/jobs", q="task:films")
        (job,) = set(re.findall(r"[0-9a-f]{8}-\d+", page))
        answer = await client.get("/jobs", params={"q": f"{job}:", "at": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job}")


async def test_the_next_page_continues_a_search(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "LOOKED_MAX", 10)
    monkeypatch.setattr(search, "_SLICE", 10)
    async with browser(data) as client:
        page = await shown(client, "/jobs", q='"user 3" key:letter-3')
        steps = 1
        while "Go on" in page:
            assert f"Looked at {10 * steps} of {COUNT + 1} jobs, none of which fits so far" in page
            assert "No job matches" not in page
            (following,) = re.findall(r'rel="next" href="([^"]+)"', page)
            page = await shown(client, following.replace("&amp;", "&"))
            steps += 1
    assert len(ids(page)) == 1
    assert steps == 3


async def _fail(app: TaskQ, jobs: Iterable[JobHandle[None]]) -> None:
    async with app.worker():
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.result(timeout=30)


async def test_a_bulk_action_covers_all_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MANY", 7)
    app = TaskQ(tmp_path, upkeep=False, name="taskq web")

    @app.task(name="fail", retry=retry.fixed(1))
    async def fail(number: int) -> None:
        raise ValueError(number)

    async with app, browser(tmp_path, allow_actions=True) as client:
        await _fail(app, await fail.enqueue_many([(number,) for number in range(COUNT)]))
        # Newer jobs in other states take no place among the matches.
        others = [await fail.options(delay="1h").enqueue(number) for number in range(COUNT)]
        page = await shown(client, "/many", act="requeue", q="task:fail")
        assert f"<h1>Requeue {COUNT} jobs?</h1>" in page
        (form,) = forms(page)
        await app.dead.purge((await app.dead.list(limit=1))[0].job_id)
        answer = await send_form(client, form)
        assert f"Requeued {COUNT - 1} jobs" in await shown(client, answer.headers["location"])
        assert (await app.stats()).queues[0].scheduled == len(others)


async def test_a_bulk_cancel_counts_cancelled_jobs_and_stop_requests(tmp_path: Path) -> None:
    """A job that began to run since it was listed is neither: what was asked for was of others."""
    app = TaskQ(tmp_path, upkeep=False, name="taskq web")
    crawl = Held(app, name="crawl")
    async with app, browser(tmp_path, allow_actions=True) as client:
        job = await crawl.task.enqueue()
        listed = await app.job(job.id).view()
        async with app.worker(concurrency=1):
            await crawl.runs.wait()
            looks = Looks(str(tmp_path))
            assert await api.Acts(looks, app)._do("cancel", [listed]) == (0, 0)
            looks.close()
            await crawl.task.options(delay="1h").enqueue_many([()] * 3)
            (form,) = forms(await shown(client, "/many", act="cancel", q="task:crawl"))
            answer = await send_form(client, form)
            page = await shown(client, answer.headers["location"])
            assert "Cancelled 3 jobs, 1 that runs was asked to stop." in page


@pytest.fixture
async def log(tmp_path: Path) -> Path:
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
        await app.worker(burst=True).run()
    return tmp_path


def tabs(page: str) -> dict[str, str]:
    return dict(re.findall(r"<span[^>]*>(\w+)</span> <b>([\d,]+)</b>", page))


async def test_tabs_count_the_filtered_jobs_of_each_state(log: Path) -> None:
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
        for path, column, above, below in (
            ("/jobs", "task", "reports.build", "mail.send"),
            ("/tasks", "dead", "mail.send", "pages.fetch"),
            ("/tasks", "success", "pages.fetch", "mail.send"),
        ):
            down = await follow(client, await shown(client, path), column)
            assert 'aria-sort="descending"' in down
            up = await follow(client, down, column)
            assert 'aria-sort="ascending"' in up
            rows = [re.findall(r"(?:mail\.send|pages\.fetch|reports\.build)</a>", page)
                    for page in (down, up)]  # fmt: skip
            assert rows[0] != rows[1]
            assert rows[0].index(f"{above}</a>") < rows[0].index(f"{below}</a>")
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


async def test_the_tasks_page_shows_counts_and_times(log: Path) -> None:
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


async def test_the_workers_page_shows_running_jobs_and_lost_workers(tmp_path: Path) -> None:
    app = TaskQ(tmp_path, upkeep=False, name="shop")
    resize = Held(app, "half of it", name="resize")
    async with app, app.worker(concurrency=3), browser(tmp_path) as client:
        job = await resize.task.enqueue()
        await app.enqueue_by_name("invoices.print")
        await resize.runs.wait()
        while await job.progress() is None:  # a thread of its own writes it down
            pass
        page = await shown(client, "/")
        assert "1 job waits that no worker knows: invoices.print (1)" in page
        assert "task%3A%3Dinvoices.print" in page
        assert re.search(r'<progress max="1" value="0.5" .*half of it', page)
        page = await shown(client, "/workers")
        assert f'href="/jobs/{job.id}"' in page
        assert re.search("1 of 3 in use", page)
        assert "half of it" in page
        assert re.search(r"memory</dt><dd>[\d.]+ MiB", page)
        assert "Python 3." in page
        assert "Gone today" not in page
        resize.end.set()
    async with browser(tmp_path) as client:
        page = await shown(client, "/workers")
        assert "Gone today" in page
        assert "shop</th>" in page


async def test_flat_arguments_are_a_table_and_code_that_enqueues_them(log: Path) -> None:
    async with browser(log) as client:
        (dead,) = ids(await shown(client, "/jobs", q="state:dead cleo"))
        page = html.unescape(await shown(client, f"/jobs/{dead}"))
    assert "await send.enqueue(to='cleo')" in page
    assert re.search(r">to</th><td[^>]*><code>\"cleo\"</code>", page)


@pytest.mark.parametrize(("task", "payload", "code"), [
    ("a.b-c", b'{"x":1}', "await b_c.enqueue(x=1)"),
    ("import", b'{"*":[1,"a"],"**":{"y":null}}', "await import_.enqueue(1, 'a', y=None)"),
    ("", b"bytes", ""),
    ("long", b'{"x":"%s"}' % (b"x" * 9_999), ""),
])  # fmt: skip
async def test_code_is_python_for_any_name(log: Path, task: str, payload: bytes, code: str) -> None:
    with LogReader.open(str(log)) as reader:
        job = reader.jobs(None, None, None, 1)[0]
    assert code_of(replace(job, task=task, payload=payload), dict) == code
