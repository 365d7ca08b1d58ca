"""What the README shows of workers in depth runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from taskq import JobFailed, TaskQ

if TYPE_CHECKING:
    from collections.abc import Callable

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks_of(title: str) -> list[str]:
    """The Python blocks under a heading."""
    _, found, rest = README.partition(f"\n## {title}\n")
    assert found, title
    return re.findall(
        r"^```python\n(.*?)^```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs blocks one after the other as one module, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)

    def run(*blocks: str, **names: Any) -> dict[str, Any]:
        vars(module).update(names)
        for block in blocks:
            exec(compile(block, "README.md", "exec"), vars(module))  # noqa: S102 - our own text
        return vars(module)

    return run


def test_the_lines_on_cancelling_run(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*blocks_of("Cancelling"))
    said = capsys.readouterr().out
    assert "tidied up film.mov" in said
    assert "was cancelled" in said


def test_the_lines_on_progress_run(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*blocks_of("Progress"))
    assert re.search(r"\d+% part \d of 3, at \d\d:\d\d", capsys.readouterr().out)


def test_the_lines_on_flows_run(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*blocks_of("Chains, groups and chords"))
    assert capsys.readouterr().out.splitlines() == [
        "2",
        "6",
        "FlowProgress(total=7, waiting=0, running=0, succeeded=7, failed=0)",
        "['<h1>x</h1>', '<h1>y</h1>']",
    ]


def test_the_lines_on_schedules_run(run: Callable[..., dict[str, Any]]) -> None:
    names = run(*blocks_of("Schedules"))
    assert len(names["app"]._planned.all) == 3


def test_the_lines_on_limits_run(run: Callable[..., dict[str, Any]]) -> None:
    limits, weights = blocks_of("Limits and weights")
    names = run(limits, app=TaskQ("data"))
    code = "async def weighted():\n" + "".join(f"    {line}\n" for line in weights.splitlines())
    names = run(code)
    asyncio.run(names["weighted"]())


def test_the_lines_on_conditions_and_breakers_run(run: Callable[..., dict[str, Any]]) -> None:
    title = "Jobs that wait for a network, or for the machine"
    names = run(*blocks_of(title), app=TaskQ("data"))
    assert {"upload", "fetch_maps", "sync_notes"} <= names.keys()
    assert len(names["upload"].requires) == 2
    assert "mail" in names["app"]._breakers


def test_the_lines_on_failed_attempts_run(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    policy, history = blocks_of("Failed attempts: which error, how often, how long")
    names = run(policy)
    app, charge = names["app"], names["charge"]
    assert str(names["decide"](names["Declined"](), 1)) == "the bank declined"

    async def refuse() -> None:
        raise names["Declined"]

    app.task(name="refuse", retry=charge.retry, on_dead=names["tell"])(refuse)

    code = "async def tell_attempts(job):\n"
    code += "".join(f"    {line}\n" for line in history.splitlines())
    names = run(code)

    async def main() -> None:
        async with app, app.worker():
            job = await app.enqueue_by_name("refuse")
            with pytest.raises(JobFailed):
                await job.result()
            await names["tell_attempts"](job)

    asyncio.run(main())
    said = capsys.readouterr().out
    assert "is dead" in said
    assert "the bank declined" in said


def test_the_lines_on_executors_run(run: Callable[..., dict[str, Any]]) -> None:
    names = run(*blocks_of("Executors and time limits"))

    async def main() -> str:
        async with names["app"] as app, app.worker():
            job = await names["fetch"].enqueue("a.example")
            text: str = await job.result()
            return text

    assert asyncio.run(main()).endswith("+00:00")


def test_the_lines_on_shared_resources_run(run: Callable[..., dict[str, Any]]) -> None:
    names = run(*blocks_of("Shared resources"))

    async def main() -> None:
        async with names["app"] as app, app.worker():
            job = await app.enqueue(names["call"])
            await job.result()

    asyncio.run(main())


def test_the_lines_for_programs_without_a_loop_run(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    run(*blocks_of("Without asyncio: Django, Flask, scripts"))
    assert capsys.readouterr().out == "6\n"


def test_the_lines_on_testing_run(run: Callable[..., dict[str, Any]]) -> None:
    names = run(*blocks_of("Testing what enqueues"))
    asyncio.run(names["test_a_new_member_is_welcomed_after_an_hour"]())
    assert not Path("production-data").exists()
