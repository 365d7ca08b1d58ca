"""Visitors of the page learn no secret from it, from the search or from the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from taskq import TaskQ
from tests.web.browser import browser, program

HIDDEN: Final = "hunter2"
PAYLOAD: Final[dict[str, Any]] = {
    "to": "ada", "password": HIDDEN, "nested": {"auth": [HIDDEN, {"x": HIDDEN}]}, "pin": HIDDEN,
}  # fmt: skip
PLACES: Final = ("/", "/jobs", "/jobs/{id}", "/failures", "/log")
ANSWERS: Final = (
    "/api/jobs", "/api/jobs/{id}", "/api/jobs/{id}/result", "/api/failures", "/api/stats",
)  # fmt: skip


@pytest.fixture
async def data(tmp_path: Path) -> tuple[Path, str]:
    """Return the id of a failed job that printed all of its values."""
    app = TaskQ(tmp_path / "data", durability="os")

    @app.task(name="log_in", retry=1)
    async def log_in(**given: Any) -> None:
        raise ValueError(f"refused: password={given['password']!r}, {given}")

    async with app:
        call = log_in.options(headers={"authorization": f"Bearer {HIDDEN}"}, key=f"pwd:{HIDDEN}")
        job = await call.enqueue(**PAYLOAD)
        async with app.worker(burst=True) as worker:
            await worker.stopped.wait()
    return tmp_path / "data", job.id


async def test_nothing_that_a_browser_gets_has_a_secret_in_it(data: tuple[Path, str]) -> None:
    path, job = data
    async with browser(path) as client:
        for place in (*PLACES, *ANSWERS):
            answer = await client.get(place.format(id=job))
            assert answer.status_code == 200, place
            assert HIDDEN not in answer.text, place
        assert "(set)" in (await client.get(f"/jobs/{job}")).text


@pytest.mark.parametrize(
    "word", [HIDDEN, '"password":"h', '"h', "'h", "password='h", '"x":"h', '"pwd:h"', "key:h"]
)
async def test_search_tells_no_secret_letter_by_letter(data: tuple[Path, str], word: str) -> None:
    path, _ = data
    async with browser(path) as client:
        for query in (word, *word.split()):
            if "h" in query[-2:]:
                answer = await client.get("/api/jobs", params={"q": query})
                assert answer.json()["jobs"] == [], query
        result = await client.get("/api/jobs", params={"q": '"to":"ada"'})
        assert len(result.json()["jobs"]) == 1


async def test_programs_get_what_was_given(data: tuple[Path, str]) -> None:
    path, job = data
    async with program(path) as client:
        answer = (await client.get(f"/api/jobs/{job}")).json()
    assert answer["payload"]["data"] == {"**": PAYLOAD}
    assert answer["headers"] == {"authorization": f"Bearer {HIDDEN}"}


async def test_who_must_sees_them(data: tuple[Path, str]) -> None:
    path, job = data
    async with browser(path, show_secrets=True) as client:
        assert HIDDEN in (await client.get(f"/jobs/{job}")).text
        result = await client.get("/api/jobs", params={"q": HIDDEN})
        assert HIDDEN in (await client.get(f"/api/jobs/{job}")).text
    assert len(result.json()["jobs"]) == 1
