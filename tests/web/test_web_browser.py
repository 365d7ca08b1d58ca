"""A person with a real browser: Debian's Chromium, driven by playwright."""

import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import anyio.to_thread
import pytest

from taskq import JobHandle, TaskQ, chain, durable
from taskq.core.errors import JobFailed, command
from tests.processes.harness import Child
from tests.web.browser import CHROMIUM

api = pytest.importorskip("playwright.async_api", reason="needs the extra browser")


#: ``npm install --prefix node axe-core`` makes it.
AXE: Final = Path(os.environ.get("TASKQ_AXE", "node/node_modules/axe-core/axe.min.js"))
#: A page on another machine, as the browser sees it.
EVIL_HOST: Final = "evil.example"
pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="needs chromium: apt-get install chromium"),
    pytest.mark.timeout(480),
]
PAGES: Final = (
    "/", "/jobs", "/tasks", "/history", "/history?span=month&task=mail.send", "/audit", "/workers",
    "/failures", "/schedules", "/limits", "/log", "/?at=1",
)  # fmt: skip

#: A page is shown anew the more seldom the longer its server takes: on a busy machine after 30 s.
WAIT_MS: Final = 100_000


class Visit:
    context: Any
    page: Any

    def __init__(self, chromium: Any, entry: str) -> None:
        self._chromium = chromium
        self.entry = entry
        self.home = entry.partition("/enter")[0]
        self.said: list[str] = []

    async def enter(self) -> None:
        self.context = await self._chromium.new_context()
        self.page = await self._watched(self.context)
        await self.page.goto(self.entry)
        await self.page.wait_for_url(f"{self.home}/")

    async def _watched(self, context: Any) -> Any:
        page = await context.new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))
        return page

    async def other(self, **how: Any) -> Any:
        state = await self.context.storage_state()
        return await self._watched(await self._chromium.new_context(storage_state=state, **how))

    async def open(self, path: str) -> Any:
        await self.page.goto(self.home + path)
        return self.page


@contextlib.asynccontextmanager
async def visited(chromium: Any, path: Path, *more: str) -> AsyncIterator[Visit]:
    with Child(sys.executable, "-m", "taskq", "web", path, *more) as child:
        visit = Visit(chromium, await anyio.to_thread.run_sync(child.line))
        await visit.enter()
        yield visit
        for context in chromium.contexts:
            await context.close()


async def faults(page: Any) -> list[tuple[str, str]]:
    if not AXE.exists():
        pytest.skip(f"needs axe-core at {AXE}, or where TASKQ_AXE says: see tests/README.md")
    await page.evaluate(AXE.read_text())
    result = (await page.evaluate("axe.run()"))["violations"]
    return [(item["id"], item["nodes"][0]["html"]) for item in result]


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    """Yield Chromium, started once; any name leads it here, as an attacker's would."""
    rules = f"--host-resolver-rules=MAP {EVIL_HOST} 127.0.0.1"
    async with api.async_playwright() as playwright:
        # A container's root has no sandbox of its own to make.
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", rules]
        )
        yield browser
        await browser.close()


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[TaskQ]:
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="mail.send", queue="mail", retry=1)
    async def send(to: str) -> str:
        if not (tmp_path / "mail_is_up").exists():
            raise ConnectionError("the mail server is away")
        return f"sent to {to}"

    @app.task(name="pages.fetch", queue="pages")
    async def fetch(url: str) -> str:
        return url

    @app.task(name="orders.ship", queue="orders")
    async def ship() -> None:
        await durable.step("charge", dict, order=7)
        await durable.event("address", str, timeout="7d")

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


async def test_a_page_in_use_is_not_shown_anew(app: TaskQ, visit: Visit) -> None:
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


async def test_times_are_in_the_zone_of_the_browser_and_in_utc(app: TaskQ, visit: Visit) -> None:
    job = await enqueue(app, "nobody.knows")
    page = await visit.other(timezone_id="America/New_York")
    for path, places in ((f"/jobs/{job.id}", "#timeline ~ * time"), ("/", ".hour text[data-t]")):
        await page.goto(visit.home + path)
        await api.expect(page.locator("#zone")).to_have_text(
            re.compile(r"Times are in E[SD]T \(America/New_York\)")
        )
        place = page.locator(places).first
        stands = await place.get_attribute("datetime") or await place.get_attribute("data-t")
        at = datetime.fromisoformat(str(stands)).astimezone(ZoneInfo("America/New_York"))
        await api.expect(place).to_contain_text(f"{at:%H:%M}")
    await page.goto(f"{visit.home}/jobs/{job.id}")
    place = page.locator("#timeline ~ * time").first
    utc = str(await place.get_attribute("datetime")).replace("T", " ").replace("Z", " UTC")
    assert (await place.get_attribute("title")).endswith(f"\n{utc}")


async def test_a_command_is_copied(app: TaskQ, visit: Visit) -> None:
    job = await enqueue(app, "nobody.knows")
    await visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await visit.open(f"/jobs/{job.id}")
    await page.get_by_role("button", name="Copy").first.click()
    await api.expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == command(str(app.data_dir), "show", job.id)


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


async def test_a_page_without_its_server_comes_back_by_itself(app: TaskQ, chromium: Any) -> None:
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


#: A folder for pictures of all screens, to be looked at; none unless it is named.
SCREENS: Final = os.environ.get("TASKQ_SCREENS", "")


async def each(visit: Visit, scheme: str, paths: dict[str, str], of: str = "") -> None:
    for width, height in ((1_440, 900), (390, 844)):
        page = await visit.other(color_scheme=scheme, viewport={"width": width, "height": height})
        for name, path in paths.items():
            await page.goto(visit.home + path)
            if SCREENS:
                file = f"{SCREENS}/{of}{name.replace('/', '')}-{width}-{scheme}.png"
                await page.screenshot(path=file, full_page=True)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert await faults(page) == [], (name, width, scheme)
        await page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_shuts_anybody_out_or_is_too_wide(
    app: TaskQ, visit: Visit, scheme: str
) -> None:
    dead, fetch = await enqueue(app, "mail.send", to="x" * 400), app.tasks["pages.fetch"]
    await ended(dead)
    jobs: dict[str, Any] = {
        "dead": dead,
        "waiting": await enqueue(app, "nobody.knows", text="y" * 400),
        "event": await enqueue(app, "orders.ship"),
        "flow": await chain(fetch.call("a"), fetch.step()).enqueue(),
    }
    screens = {
        "found": "/jobs?q=state:dead+mail", "not-found": "/jobs?q=task:=nobody",
        "many": "/many?act=cancel&q=state:ready", "unknown": "/jobs?q=colour:red",
        "gone": "/nothing", **{path: path for path in PAGES},
        **{f"job-{name}": f"/jobs/{job.id}" for name, job in jobs.items()},
    }  # fmt: skip
    await each(visit, scheme, screens)
    await visit.context.clear_cookies()
    await each(visit, scheme, {"login": "/"})
    # The browser also reports refusals of the server.
    visit.said[:] = [text for text in visit.said if not text.startswith("Failed to load resource")]
