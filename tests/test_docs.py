"""The site of the documents builds, opens from a file, and has a search that finds answers."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests import docs
from tests.terminal import steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("docs")]

CHROMIUM: Final = os.environ.get("TASKQ_CHROMIUM") or shutil.which("chromium") or ""
#: Pages with an answer, and the queries that find one of them.
PAGES: Final = {
    "how/disk": "disk full", "how/limit": "rate limit", "how/flow": "chain tasks",
    "how/test": "test my tasks", "how/sql how/monitor": "p95", "how/progress": "progress bar",
    "how/replace": "replace a box", "how/urgent": "priority queue",
    "how/run-once": "avoid duplicates", "how/edge": "raspberry pi offline",
    "how/run-later": "run a task later", "how/timeout": "timeout for a task",
    "how/many-jobs": "csv import kafka", "how/cancel": "how do I cancel a job",
    "how/web": "fastapi background tasks", "how/result": "get the result of a job",
    "how/large": "large files as arguments", "how/deploy": "deploy with jobs waiting",
    "how/durable": "human approval workflow", "how/service": "systemd service; autoscale",
    "how/failed-jobs": "dead letter requeue; DLQ", "how/exactly-once how/run-once": "idempotent",
    "how/deploy how/service": "graceful shutdown", "how/exactly-once how/kill-9": "at least once",
    "how/schedule": "run a job every morning; cron",
    "from/celery how/migrate": "coming from celery",
    "how/exactly-once how/many-jobs": "exactly once",
    "how/monitor workers/metrics": "prometheus metrics",
    "how/why": "why does my job not run; job stuck in ready",
    "how/limit guide/limits-and-weights": "limit concurrency",
    "how/share-resources": "import sqlalchemy session in task",
    "how/web examples/django-flask-and-fastapi": "use with django",
    "how/kill-9 guide/what-an-answer-survives how/edge": "power loss",
    "how/retry": "how do I retry; retry only some errors; exponential backoff",
    "how/kill-9": "worker was killed; what happens on kill -9; orphaned; zombie",
    "how/service workers/running-a-worker how/run-once wrong": "two workers same job",
}  # fmt: skip
QUESTIONS: Final = {words: pages for pages, asked in PAGES.items() for words in asked.split("; ")}
#: Waits until the list of results has not changed for a second.
QUIET: Final = """() => new Promise(done => {
  let timer = setTimeout(done, 1000);
  new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 1000); })
    .observe(document.querySelector(".md-search-result__list"), {childList: true});
})"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("site")
    assert docs.build(directory) == 0
    return directory


@pytest.mark.skipif(not shutil.which("node"), reason="needs node: apt-get install nodejs")
def test_the_page_that_answers_is_among_the_first_two(site: Path) -> None:
    """Run the site's own scripts in node, as a browser does."""
    search = ["node", str(docs.ROOT / "tests/search.mjs"), str(site)]
    ran = subprocess.run(
        search, input="\n".join(QUESTIONS), capture_output=True, text=True, check=True
    )
    firsts = {
        question: json.loads(pages)[:2]
        for question, pages in zip(QUESTIONS, ran.stdout.splitlines(), strict=True)
    }
    assert {q: pages for q, pages in firsts.items() if not {*pages} & {*QUESTIONS[q].split()}} == {}


def test_each_picture_of_a_page_is_there(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    shown = [
        (page.parent / source)
        for page, text in pages.items()
        for source in re.findall(r'<img [^>]*src="([^":]+)"', text)
        if not source.startswith("/")  # the error page may be shown at any path
    ]
    assert shown
    assert [source for source in shown if not source.exists()] == []


def test_copying_a_session_copies_its_commands(site: Path) -> None:
    page = (site / "how/kill-9.html").read_text(encoding="utf-8")
    source = (docs.ROOT / ".docs/pages/how/kill-9.md").read_text(encoding="utf-8")
    (copied,) = re.findall(r'data-copy="([^"]*)"', page)
    assert html.unescape(copied).splitlines() == [step.typed for step in steps(source)]


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium: apt-get install chromium")
def test_it_is_searched_from_a_file_and_asks_nobody(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site.as_uri()}/index.html")
        page.click("input.md-search__input")
        page.type("input.md-search__input", "how do I retry")  # the search listens to keys
        page.evaluate(QUIET)
        page.wait_for_selector(".md-search-result__item > a", state="attached")
        first = page.eval_on_selector(".md-search-result__item > a", "link => link.href")
        browser.close()
    assert "how/retry.html" in first
    assert all(url.startswith(("file:", "data:")) for url in asked)
