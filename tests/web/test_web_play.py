"""One play in a browser, on a log of 22 000 jobs: what a page is worth on a bad day."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from taskq import State, TaskQ
from taskq.log.read.reader import LogReader
from tests.hub.place import Place as HubPlace
from tests.processes.harness import Child, eventually
from tests.web.visit import Visit, faults, needs_chromium, visited

api = pytest.importorskip("playwright.async_api", reason="needs the extra browser")


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

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(600)]


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
