"""A person with a real browser: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from taskq import JobHandle, TaskQ
from taskq.core.errors import JobFailed, command
from tests.processes.harness import Child
from tests.web.test_web_pages import EVIL, NAME
from tests.web.visit import EVIL_HOST, Visit, faults, needs_chromium, visited

api = pytest.importorskip("playwright.async_api", reason="needs the extra browser")


PAGES: Final = (
    "/",
    "/jobs",
    "/tasks",
    "/workers",
    "/failures",
    "/schedules",
    "/limits",
    "/log",
    "/?at=1",
)
WIDTHS: Final = (400, 1_400)
#: When a page showed its first content, in milliseconds; a page's policy allows no ``eval``, by
#: which playwright would wait for it.
PAINTED_AT: Final = """() => new Promise(tell => new PerformanceObserver(seen => seen.getEntries()
    .filter(one => one.name === 'first-contentful-paint').forEach(one => tell(one.startTime)))
    .observe({type: 'paint', buffered: true}))"""

#: A page is shown anew the more seldom the longer its server takes: on a busy machine after 30 s.
WAIT_MS: Final = 100_000

pytestmark = [needs_chromium, pytest.mark.timeout(240)]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TaskQ]:
    """Yield a worker that sends no mail before there is a file ``mail_is_up``."""
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="mail.send", queue="mail", retry=1)
    async def send(to: str) -> str:
        if not (tmp_path / "mail_is_up").exists():
            raise ConnectionError("the mail server is away")
        return f"sent to {to}"

    @app.task(name="pages.fetch", queue="pages")
    async def fetch(url: str) -> str:
        return url

    async with app, app.worker():
        yield app


@pytest.fixture
async def visit(app: TaskQ, chromium: Any) -> AsyncIterator[Visit]:
    async with visited(chromium, app.data_dir, "--allow-actions") as visit:
        yield visit
        assert visit.said == []


async def enqueue(app: TaskQ, task: str, **arguments: Any) -> JobHandle[Any]:
    return await app.enqueue(
        app.call_by_name(task, **arguments).options(queue=task.partition(".")[0])
    )


async def ended(job: JobHandle[Any]) -> None:
    with contextlib.suppress(JobFailed):
        await job.result(timeout=30)


async def test_a_job_is_seen_to_fail_its_traceback_read_and_requeued_it_is_seen_to_succeed(
    app: TaskQ, visit: Visit, tmp_path: Path
) -> None:
    page, expect = visit.page, api.expect
    job = await enqueue(app, "mail.send", to="ada")
    # Nobody loads the page again: it is shown anew by itself.
    row = page.locator("tr", has_text=job.id)
    await expect(row).to_contain_text("ConnectionError: the mail server is away", timeout=WAIT_MS)
    await row.get_by_role("link", name=job.id).click()
    await expect(page.locator("h1")).to_contain_text("dead")
    await expect(page.locator("details pre")).to_be_visible()
    await expect(page.locator("details pre")).to_contain_text("in send")
    (tmp_path / "mail_is_up").touch()
    await page.get_by_role("button", name="Requeue").click()
    await expect(page.locator("h1")).to_contain_text("succeeded", timeout=WAIT_MS)
    await expect(page.locator("#result + pre")).to_have_text('"sent to ada"')


async def test_a_queue_is_paused_and_resumed(app: TaskQ, visit: Visit) -> None:
    await ended(await enqueue(app, "pages.fetch", url="a"))
    page = await visit.open("/")
    await page.get_by_role("button", name="Pause").click()
    await api.expect(page.locator(".paused")).to_be_visible()
    waits = await enqueue(app, "pages.fetch", url="b")
    await visit.open(f"/jobs/{waits.id}")
    await api.expect(page.locator("main")).to_contain_text("Queue 'pages' is paused")
    await visit.open("/")
    await page.get_by_role("button", name="Resume").click()
    assert await waits.result(timeout=30) == "b"


async def test_the_slider_shows_each_page_as_it_was(app: TaskQ, visit: Visit) -> None:
    job = await enqueue(app, "mail.send", to="ada")
    await ended(job)
    page, expect = await visit.open(f"/jobs/{job.id}"), api.expect
    await expect(page.locator("h1")).to_contain_text("dead")
    await page.get_by_role("slider").focus()
    await page.keyboard.press("Home")
    await page.wait_for_url("**?at=1")
    # A frame is one moment, and the claim may be in the enqueue's frame.
    await expect(page.locator("h1")).to_contain_text(re.compile("ready|running"))
    await expect(page.locator(".past")).to_contain_text("As it was")
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    await page.get_by_role("link", name="Failures").click()
    await expect(page.locator("main")).to_contain_text("No dead letters")
    await page.get_by_role("link", name="Back to now").click()
    await expect(page.locator("main")).to_contain_text("the mail server is away")


async def test_jobs_are_found_by_keyboard_alone(app: TaskQ, visit: Visit) -> None:
    jobs = [await enqueue(app, "pages.fetch", url=url) for url in ("a", "bee")]
    await ended(jobs[1])
    page, expect = await visit.open("/"), api.expect
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Find")).to_be_focused()
    await page.keyboard.type("fail")
    await expect(page.locator("#goals a").first).to_contain_text("Failures")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{visit.home}/failures")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_label("Find")).to_be_focused()
    await page.keyboard.type("task:pages.fetch bee")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/jobs?q=*")
    await expect(page.locator("tbody tr")).to_have_count(1)
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.locator(":focus").inner_text() == jobs[1].id:
            break
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_contain_text(jobs[1].id)


async def test_a_page_is_not_shown_anew_under_the_hands_of_somebody(
    app: TaskQ, visit: Visit
) -> None:
    job = await enqueue(app, "nobody.knows")
    await visit.page.clock.install()
    page = await visit.open("/")
    button = page.get_by_role("button", name="Pause")
    await button.focus()
    await job.cancel()
    await page.clock.run_for(10_000)
    await api.expect(button).to_be_focused()
    await button.blur()
    await page.clock.run_for(2_000)
    await api.expect(page.locator("main")).to_contain_text("cancelled")


async def test_a_command_is_copied(app: TaskQ, visit: Visit) -> None:
    job = await enqueue(app, "nobody.knows")
    await visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await visit.open(f"/jobs/{job.id}")
    await page.get_by_role("button", name="Copy").first.click()
    await api.expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == command(str(app.data_dir), "show", job.id)


async def every_page(app: TaskQ) -> list[str]:
    dead = await enqueue(app, "mail.send", to="x" * 400)
    await ended(dead)
    waits = await enqueue(app, "nobody.knows", text="y" * 400)
    return [*PAGES, "/jobs?q=state:dead", f"/jobs/{dead.id}", f"/jobs/{waits.id}"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_shuts_anybody_out(app: TaskQ, visit: Visit, scheme: str) -> None:
    paths = await every_page(app)
    for width in WIDTHS:
        page = await visit.other(color_scheme=scheme, viewport={"width": width, "height": 800})
        for path in paths:
            await page.goto(visit.home + path)
            assert await faults(page) == [], (path, width)


@pytest.mark.parametrize("width", WIDTHS)
async def test_no_page_is_wider_than_its_window(app: TaskQ, visit: Visit, width: int) -> None:
    page = await visit.other(viewport={"width": width, "height": 800})
    for path in await every_page(app):
        await page.goto(visit.home + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path


async def test_who_shows_no_token_is_refused_and_a_token_is_good_once(
    app: TaskQ, chromium: Any
) -> None:
    async with visited(chromium, app.data_dir) as visit:
        stranger = await (await chromium.new_context()).new_page()
        for address in (visit.home, f"{visit.home}/jobs", visit.entry, f"{visit.home}/enter"):
            assert (await stranger.goto(address)).status == 401
            await api.expect(stranger.get_by_role("alert")).to_be_visible()
        assert (await visit.page.goto(f"{visit.home}/jobs")).status == 200
        await enqueue(app, "nobody.knows")
        await visit.open("/")
        await api.expect(visit.page.get_by_role("row", name="nobody").first).to_be_visible()
        assert await visit.page.locator("form.time").count() == 1
        assert await visit.page.locator("form[method=post]").count() == 0


async def test_script_in_names_and_payloads_is_inert(tmp_path: Path, chromium: Any) -> None:
    app = TaskQ(tmp_path / "evil", durability="os", name=NAME)

    @app.task(name=NAME, queue=NAME, retry=1)
    async def fail(text: str) -> str:
        raise ValueError(EVIL + "<svg onload=alert(1)>javascript:alert(1)")

    async with app, app.worker():
        job = await fail.options(headers={NAME: EVIL}, key=EVIL).enqueue(EVIL)
        await ended(job)
        async with visited(chromium, app.data_dir, "--allow-actions") as visit:
            result = "/jobs?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
            for path in (*PAGES, f"/jobs/{job.id}", result):
                page = await visit.open(path)
                assert await page.locator("main :is(script, img, [onload])").count() == 0
            await visit.open("/")
            await visit.page.get_by_role("button", name="Pause").click()
            await api.expect(visit.page.locator(".paused")).to_be_visible()
            assert visit.said == []


async def test_a_page_from_elsewhere_reads_and_changes_nothing(app: TaskQ, visit: Visit) -> None:
    await enqueue(app, "nobody.knows")
    page = await visit.open("/")
    token = await page.locator("[name='taskq.token']").first.get_attribute("value")
    evil = await visit.context.new_page()
    # The worst case: it has even learnt the form's token.
    body = f"""<form method=post action="{visit.home}/act/pause"><input name=name value=nobody>
        <input name=token value={token}><button>win</button></form><iframe src="{visit.home}/">"""
    address = f"http://{EVIL_HOST}/"
    await evil.route(address, lambda route: route.fulfill(body=body, content_type="text/html"))
    await evil.goto(address)
    async with evil.expect_response("**/act/pause") as refused:
        await evil.get_by_role("button").click()
    assert (await refused.value).status in {401, 403}
    assert not (await app.stats()).queues[0].paused
    await evil.goto(address)
    assert "Queues" not in await evil.frames[1].content()
    for path in ("/", "/api/jobs"):
        asked = "url => fetch(url, {credentials: 'include'}).then(() => '', error => error.name)"
        assert await evil.evaluate(asked, visit.home + path) == "TypeError"


@pytest.mark.slow
async def test_a_million_jobs_are_shown_within_a_second(tmp_path: Path, chromium: Any) -> None:
    app = TaskQ(tmp_path / "million", durability="os")

    @app.task(name="mail.send", queue="mail")
    async def send(to: str, number: int) -> None:
        """It is only enqueued."""

    async with app:
        for part in range(100):
            rows = range(part * 10_000, part * 10_000 + 10_000)
            await send.enqueue_many([("ada@example.org", number) for number in rows])
    async with visited(chromium, app.data_dir) as visit:
        for path, seconds in (("/", 1), ("/jobs", 0.3), ("/jobs?q=state:ready", 0.3)):
            page, took = visit.page, []
            for _ in range(3):
                await visit.open(path)
                took.append(await page.evaluate(PAINTED_AT) / 1_000)
            assert min(took) < seconds, path
        await api.expect(page.locator("tbody tr")).to_have_count(50)


async def test_another_name_for_this_machine_shows_nothing(visit: Visit) -> None:
    evil = await visit.context.new_page()
    answer = await evil.goto(f"http://{EVIL_HOST}:{visit.home.rpartition(':')[2]}/")
    assert answer.status == 421
    assert "Queues" not in await evil.content()


async def test_a_page_whose_server_is_gone_says_so_and_comes_back_by_itself(
    app: TaskQ, chromium: Any
) -> None:
    path = app.data_dir
    await ended(await enqueue(app, "pages.fetch", url="first"))
    with Child(sys.executable, "-m", "taskq", "web", path) as child:
        visit = Visit(chromium, await anyio.to_thread.run_sync(child.line))
        await visit.enter()
        fresh, expect = visit.page.locator("#fresh"), api.expect
        await expect(fresh).to_have_text(re.compile(r"^\s*updated \d+ s ago$"))
    await expect(fresh).to_contain_text("The server does not answer", timeout=WAIT_MS)
    await expect(fresh).to_contain_text(re.compile("This is how it was [1-9] s ago"))
    port = visit.home.rpartition(":")[2]
    with Child(sys.executable, "-m", "taskq", "web", path, "--port", port) as child:
        await anyio.to_thread.run_sync(child.line)
        # The login is good at the new server, too.
        await expect(fresh).to_have_text(re.compile(r"^\s*updated \d+ s ago$"), timeout=WAIT_MS)
    with Child(sys.executable, "-m", "taskq", "web", path, "--port", port) as child:
        await anyio.to_thread.run_sync(child.line)
        await visit.context.clear_cookies()
        await expect(fresh).to_contain_text("This browser is not known", timeout=WAIT_MS)
