"""The documents as a site: it builds, it opens from a file, and its search answers newcomers."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from tests import docs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

CHROMIUM: Final = os.environ.get("TASKQ_CHROMIUM") or shutil.which("chromium") or ""
#: A newcomer's words, and the pages that answer them.
QUESTIONS: Final = {
    "how do I retry": "guide/retries",
    "why does my job not run": "guide/why-a-job-does-not-run",
    "two workers same job": "workers/running-a-worker wrong",
    "how do I cancel a job": "guide/cancelling",
    "run a job every morning": "guide/schedules",
    "run a task later": "guide/enqueue guide/task-options",
    "get the result of a job": "guide/enqueue",
    "power loss": "guide/what-an-answer-survives wrong edge",
    "disk full": "guide/what-an-answer-survives wrong edge",
    "use with django": "examples/django-flask-and-fastapi web",
    "test my tasks": "guide/testing",
    "limit concurrency": "guide/limits-and-weights",
    "progress bar": "guide/progress",
    "worker was killed": "wrong how workers/running-a-worker",
    "dead letter requeue": "guide/dead-letters",
    "avoid duplicates": "guide/keys",
    "large files as arguments": "guide/large-arguments-and-results",
    "chain tasks": "guide/flows",
    "systemd service": "how/service",
    "prometheus metrics": "workers/metrics",
    "timeout for a task": "guide/task-options workers/executors",
    "coming from celery": "from/celery",
}
#: Waits until the list of finds has not changed for a second.
QUIET: Final = """() => new Promise(done => {
  let timer = setTimeout(done, 1000);
  new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, 1000); })
    .observe(document.querySelector(".md-search-result__list"), {childList: true});
})"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield the site's first page in a browser, opened from its file."""
    playwright = pytest.importorskip("playwright.sync_api")
    directory: Path = tmp_path_factory.mktemp("site")
    assert docs.build(directory) == 0
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{directory.as_uri()}/index.html")
        page.click("input.md-search__input")
        yield page
        assert all(url.startswith(("file:", "data:")) for url in asked)
        browser.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not CHROMIUM, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_that_answers_is_among_the_first_three(page: Page, question: str) -> None:
    page.fill("input.md-search__input", "")
    page.type("input.md-search__input", question)  # the search listens to keys
    page.evaluate(QUIET)
    page.wait_for_selector(".md-search-result__item > a", state="attached")
    script = "links => links.slice(0, 3).map(link => link.href)"
    links: list[str] = page.eval_on_selector_all(".md-search-result__item > a", script)
    pages = [re.sub(r".*/site\d+/|\.html.*", "", link) for link in links]
    assert set(pages) & set(QUESTIONS[question].split()), pages
