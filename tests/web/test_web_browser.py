"""A person with a real browser: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import anyio.to_thread
import pytest

from taskq import JobHandle, State, TaskQ
from taskq.core.errors import JobFailed, command
from taskq.log.read.reader import LogReader
from tests.hub.place import Place as HubPlace
from tests.processes.harness import Child, eventually
from tests.web.test_web_pages import EVIL, NAME
from tests.web.visit import EVIL_HOST, Visit, faults, needs_chromium, visited

api = pytest.importorskip("playwright.async_api", reason="needs the extra browser")


PAGES: Final = (
    "/",
    "/jobs",
    "/tasks",
    "/history",
    "/history?span=month&task=mail.send",
    "/audit",
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
async def test_times_are_in_the_zone_of_the_browser_which_is_said_with_utc_on_hover(
    app: TaskQ, visit: Visit
) -> None:
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_shuts_anybody_out(app: TaskQ, visit: Visit, scheme: str) -> None:
    paths = await every_page(app)
    for width in WIDTHS:
        page = await visit.other(color_scheme=scheme, viewport={"width": width, "height": 800})
        for path in paths:
            await page.goto(visit.home + path)
            assert await faults(page) == [], (path, width)


@needs_chromium
@pytest.mark.timeout(240)
@pytest.mark.parametrize("width", WIDTHS)
async def test_no_page_is_wider_than_its_window(app: TaskQ, visit: Visit, width: int) -> None:
    page = await visit.other(viewport={"width": width, "height": 800})
    for path in await every_page(app):
        await page.goto(visit.home + path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
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


@needs_chromium
@pytest.mark.timeout(240)
async def test_another_name_for_this_machine_shows_nothing(visit: Visit) -> None:
    evil = await visit.context.new_page()
    answer = await evil.goto(f"http://{EVIL_HOST}:{visit.home.rpartition(':')[2]}/")
    assert answer.status == 421
    assert "Queues" not in await evil.content()


@needs_chromium
@pytest.mark.timeout(240)
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


HERE: Final = Path(__file__).parent
JOBS: Final = 22_000
SIZES: Final = ((1_440, 900), (390, 844))
LISTS: Final = {
    name: f"/{name}" for name in ("tasks", "workers", "failures", "schedules", "limits", "log")
}
#: A folder for pictures of all screens, to be looked at; none unless it is named.
SCREENS: Final = os.environ.get("TASKQ_SCREENS", "")
WORDS: Final = (sys.executable, "-m", "taskq")
#: The longest refresh of a page, on a busy machine.
SOON: Final = 30_000
#: The longest act on thousands of jobs, on a busy machine.
STEP: Final = 120_000


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a shop and its log: an hour that has passed, and work that waits."""
    monkeypatch.setenv("TASKQ_DATA_DIR", str(tmp_path / "data"))
    for name in ("past.py", "shop.py", "crowd.py"):
        shutil.copy(HERE / name, tmp_path)
        subprocess.run([sys.executable, name], check=True, cwd=tmp_path)
    return tmp_path


def worker(shop: Path) -> Child:
    return Child(*WORDS, "worker", "crowd:app", "-c", 8, cwd=shop)


def counts(shop: Path, task: str) -> Counter[str]:
    with LogReader.open(str(shop / "data")) as reader:
        lanes = reader.lanes()
    return next(counted for (_, name), counted in lanes.items() if name == task)


def running(shop: Path) -> int:
    with LogReader.open(str(shop / "data")) as reader:
        return sum(owner.running for owner in reader.owners())


def health(shop: Path) -> str:
    asked = [*WORDS, "health", "-d", str(shop / "data")]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout


@needs_chromium
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_bad_day_is_told_as_it_is(shop: Path, chromium: Any) -> None:
    data, thread = shop / "data", anyio.to_thread.run_sync
    with Child(*WORDS, "web", data, "--allow-actions") as web:
        visit = Visit(chromium, await thread(web.line))
        await visit.enter()
        visit.page.set_default_timeout(STEP)
        with worker(shop) as busy:
            await thread(partial(busy.expect, "  ready"))
            await thread(eventually, lambda: running(shop) > 1)
            await the_worker_dies(visit, shop, busy)
        await what_exists_is_found(visit, shop)
    port = visit.home.rpartition(":")[2]
    await the_server_is_gone(visit)
    with Child(*WORDS, "web", data, "--allow-actions", "--port", port) as web:
        await thread(web.line)
        await the_server_is_back(visit)
        with worker(shop) as busy:
            await thread(partial(busy.expect, "  ready"))
            await all_that_fit_is_all(visit, shop)
            await every_screen(visit, shop)
    # The browser also reports refusals of the server, and missing answers.
    assert [text for text in visit.said if not text.startswith("Failed to load resource")] == []


async def the_worker_dies(visit: Visit, shop: Path, busy: Child) -> None:
    """Its jobs are not told as if they ran, and that nobody works stands at the top."""
    expect, standing = api.expect, visit.page.locator(".standing p").first
    await expect(visit.page.locator(".standing")).to_contain_text("1 worker runs", timeout=SOON)
    busy.kill()
    await expect(standing).to_contain_text("No worker runs: ", timeout=SOON)
    ran = await anyio.to_thread.run_sync(running, shop)
    await expect(standing).to_contain_text(f"{ran} were running when theirs died")
    assert ran > 1
    await expect(visit.page.locator("dl.tiles")).to_contain_text(f"{ran} whose process is gone")
    shown = min(ran, 20)
    await expect(visit.page.locator("b.lost")).to_have_text(["its process is gone"] * shown)
    text = (await standing.inner_text()).rstrip(".")
    assert text in await anyio.to_thread.run_sync(health, shop)


async def what_exists_is_found(visit: Visit, shop: Path) -> None:
    """An id opens its job however it is written; text is looked for in all jobs, in steps."""
    page, expect = visit.page, api.expect
    with LogReader.open(str(shop / "data")) as reader:
        oldest = reader.jobs(None, None, "crawl.page", JOBS)[-1].job_id
    number = oldest.partition("-")[2]
    for written in (oldest, number, f"-{number}", f"`{oldest}`:"):
        await visit.open("/")
        await page.get_by_label("Find").fill(written)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/jobs/{oldest}")
    await page.get_by_label("Find").fill("needle.example")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"/jobs\?q=needle"))
    looked, steps = page.locator("p.note", has_text="Looked at"), 0
    while not await page.locator("tbody tr").count():
        steps += 1
        await expect(looked).to_contain_text(
            f"Looked at {steps},000 of 22,000 jobs, none of which fits so far"
        )
        await page.get_by_role("link", name="Go on").click()
        await page.wait_for_url(f"**looked={steps}000*")
    assert steps > JOBS // 1_000 // 2
    await expect(page.locator("tbody tr")).to_contain_text(oldest)
    await visit.open("/jobs?q=colour:red")
    await expect(page.get_by_role("alert")).to_contain_text("colour: is no property of a job")
    await visit.open("/")
    await expect(page.locator("#fresh")).to_contain_text("updated")


async def the_server_is_gone(visit: Visit) -> None:
    """A page that is not renewed counts the seconds since it was."""
    fresh, expect = visit.page.locator("#fresh"), api.expect
    await expect(fresh).to_contain_text("The server does not answer", timeout=SOON)
    seconds = re.search(r"how it was (\d+) s ago", await fresh.inner_text())
    assert seconds is not None
    later = "|".join(str(int(seconds[1]) + more) for more in range(1, 20))
    await expect(fresh).to_contain_text(re.compile(rf"how it was ({later}) s ago"), timeout=SOON)


async def the_server_is_back(visit: Visit) -> None:
    """The page goes on by itself, and the server knows the browser."""
    fresh, expect = visit.page.locator("#fresh"), api.expect
    await expect(fresh).to_have_text(re.compile(r"^\s*updated \d+ s ago$"), timeout=SOON)
    await expect(visit.page.locator(".standing p").first).to_contain_text("No worker runs: ")


async def act_on_all(visit: Visit, act: str, query: str) -> tuple[int, int, int]:
    """Do something to all jobs that fit: return how many did, how often it was done, how many not.

    It is asked once, and one lands on the list.
    """
    page = await visit.open(f"/jobs?q={query}")
    await page.locator(".acts .note").get_by_role("link", name=f"{act}…").click()
    count = _number(r"(\S+) jobs\?$", await page.locator("h1").inner_text())
    await page.get_by_role("button", name=f"{act.title()} {count:,}").click()
    await page.wait_for_url(re.compile(rf"/jobs\?.*act={act}"))
    said = await page.locator("main [role=status]").inner_text()
    changed = _number(r"(\S+) had changed", said) if "changed" in said else 0
    return count, _number(r"\w+ (\S+) jobs?", said), changed


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1].replace(",", ""))


async def all_that_fit_is_all(visit: Visit, shop: Path) -> None:
    """Check that what was done to how many is true, though a worker takes of them meanwhile."""
    thread, expect, page = anyio.to_thread.run_sync, api.expect, visit.page
    before = counts(shop, "stock.check")
    (shop / "data.stock-is-up").touch()
    done = await act_on_all(visit, "requeue", "state:dead+task:stock.check")
    assert done == (before["dead"], before["dead"], 0)
    await thread(eventually, lambda: counts(shop, "stock.check")["succeeded"] == before["dead"])
    # The worker takes of these all the time.
    count, cancelled, changed = await act_on_all(visit, "cancel", "state:ready+task:crawl.page")
    assert 1_000 < cancelled + changed <= count
    await thread(eventually, lambda: not counts(shop, "crawl.page")["running"])
    after = counts(shop, "crawl.page")
    assert (after["cancelled"], after["ready"]) == (cancelled, 0)
    dead = counts(shop, "pages.fetch")["dead"]
    assert await act_on_all(visit, "purge", "state:dead+task:pages.fetch") == (dead, dead, 0)
    assert counts(shop, "pages.fetch")["dead"] == 0
    await visit.open("/jobs?q=state:dead+task:orders.import")
    await page.locator("tbody .id").first.click()
    await page.get_by_text("Purge…").click()
    await page.get_by_role("button", name="Purge it").click()
    await expect(page.locator("main [role=status]")).to_have_text("Purged 1 job.")
    await visit.open("/jobs?q=state:scheduled+task:payments.charge")
    await page.locator("tbody .id").first.click()
    await page.get_by_text("Cancel…").click()
    await page.get_by_role("button", name="Cancel it").click()
    await expect(page.locator("h1")).to_contain_text("cancelled")


def screens(shop: Path) -> dict[str, str]:
    def newest(reader: LogReader, task: str, state: State) -> str:
        return f"/jobs/{reader.jobs({state}, None, task, 1)[0].job_id}"

    with LogReader.open(str(shop / "data")) as reader:
        jobs = {
            "job-dead": newest(reader, "mail.send", State.DEAD),
            "job-running": newest(reader, "images.resize", State.RUNNING),
            "job-waiting": newest(reader, "notes.sync", State.READY),
            "job-steps": newest(reader, "orders.ship", State.SUCCEEDED),
            "job-event": newest(reader, "orders.ship", State.SCHEDULED),
            "job-flow": newest(reader, "pages.total", State.SUCCEEDED),
        }
    return {
        "now": "/", "past": "/?at=20m", "jobs": "/jobs", "found": "/jobs?q=state:dead+mail",
        "not-found": "/jobs?q=task:=nobody", "many": "/many?act=cancel&q=state:scheduled",
        "unknown": "/jobs?q=colour:red", "gone": "/nothing", **LISTS, **jobs,
    }  # fmt: skip


async def every_screen(visit: Visit, shop: Path) -> None:
    await each(visit, screens(shop))
    await visit.context.clear_cookies()
    await each(visit, {"login": "/"})


@needs_chromium
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_empty_screens_and_a_hub_shut_nobody_out(tmp_path: Path, chromium: Any) -> None:
    app, place = TaskQ(tmp_path / "empty"), HubPlace(tmp_path)
    async with app:
        await app.stats()
    await place.write(3)
    await place.sync()
    async with visited(chromium, app.data_dir, "--allow-actions") as visit:
        await each(visit, {"now": "/", "jobs": "/jobs", **LISTS}, "empty-")
    async with visited(chromium, place.hub) as visit:
        await each(visit, {"hub": "/"})


async def each(visit: Visit, paths: dict[str, str], of: str = "") -> None:
    """Look at screens, wide and narrow, by day and by night."""
    for scheme in ("light", "dark"):
        for width, height in SIZES:
            page = await visit.other(
                color_scheme=scheme, viewport={"width": width, "height": height}
            )
            for name, path in paths.items():
                await page.goto(visit.home + path)
                if SCREENS:
                    file = f"{SCREENS}/{of}{name}-{width}-{scheme}.png"
                    await page.screenshot(path=file, full_page=True)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, name
                assert await faults(page) == [], (name, width, scheme)
            await page.context.close()
