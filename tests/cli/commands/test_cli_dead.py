"""``taskq dead``: ls, show, requeue and purge."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskq import TaskLog
from tests.cli.helpers import state, taskq, taskq_json


async def _fill(path: Path) -> dict[str, str]:
    ids = {}
    async with TaskLog.open(path, durability="os") as log:
        for name, queue, reason in (
            ("mail", "mail", "TimeoutError: slow\ntraceback"),
            ("sync", "sync", "ValueError: bad\x1b[31m"),
            ("held", "mail", "ValueError: held"),
        ):
            key = "k" if name == "held" else None
            ids[name] = await log.put(b'{"n": 1}', queue=queue, attempts=1, key=key)
            (delivery,) = await log.claim(queues=[queue])
            await log.nack(delivery, reason)
        ids["live"] = await log.put(b"x", queue="mail", key="k")
    return ids


@pytest.fixture
def ids(path: Path) -> dict[str, str]:
    return asyncio.run(_fill(path))


def dead_ids(path: Path, *filters: str) -> list[str]:
    return [job["id"] for job in taskq_json("dead", "ls", "-d", path, *filters)]


def test_ls_shows_reasons_and_writes_nothing(path: Path, ids: dict[str, str]) -> None:
    before = {path: path.read_bytes() for path in path.rglob("*") if path.is_file()}
    result = taskq("dead", "ls", "-d", path)
    assert result.exit_code == 0
    assert "TimeoutError: slow" in result.stdout
    assert "ValueError: bad\\x1b[31m" in result.stdout
    assert "traceback" not in result.stdout
    assert set(dead_ids(path)) == {ids["mail"], ids["sync"], ids["held"]}
    assert before == {path: path.read_bytes() for path in path.rglob("*") if path.is_file()}


def test_ls_filters(path: Path, ids: dict[str, str]) -> None:
    for filters, expected in (
        (("-Q", "sync"), ["sync"]),
        (("--error", "slow"), ["mail"]),
        (("--match", "^Value.*d$"), ["held"]),
        (("--since", "1h", "-Q", "sync"), ["sync"]),
        (("--before", "1h"), []),
        (("--since", "2100-01-01"), []),
    ):
        assert dead_ids(path, *filters) == [ids[name] for name in expected], filters
    assert len(dead_ids(path, "-n", "2")) == 2
    result = taskq("dead", "ls", "-d", path, "--error", "nothing of the kind")
    assert (result.exit_code, result.stdout) == (0, "No dead letter matches.\n")


def test_show_shows_dead_letters_only(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "show", ids["mail"], "-d", path)
    assert result.exit_code == 0
    assert "traceback" in result.stdout
    assert taskq_json("dead", "show", ids["mail"], "-d", path)["reason"].startswith("TimeoutError")
    result = taskq("dead", "show", ids["live"], "-d", path)
    assert result.exit_code == 1
    assert result.stderr == (
        f"taskq: job {ids['live']} is no dead letter: it is ready; they are listed by: "
        f"taskq dead ls -d {path}\n"
    )


def test_requeue_by_id_works_once(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "requeue", ids["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "requeued 1 dead letter\n")
    assert state(path, ids["mail"]) == "ready"
    result = taskq("dead", "requeue", ids["mail"], ids["held"], "-d", path)
    assert (result.exit_code, result.stdout) == (1, "requeued 0 dead letters\n")
    assert f"job {ids['mail']} is no dead letter: it is ready" in result.stderr
    assert f"job {ids['live']} holds its dedup key" in result.stderr
    document = taskq("dead", "requeue", ids["sync"], ids["mail"], "-d", path, "--json")
    assert document.exit_code == 1
    assert '"requeued": 1' in document.stdout
    assert '"refused": 1' in document.stdout


def test_requeue_by_filter_asks_first(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "requeue", "-d", path, "-Q", "sync")
    assert result.exit_code == 2
    assert "add --yes" in result.stderr
    result = taskq("dead", "requeue", "-d", path, "--all", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "would have requeued 3 dead letters\n")
    assert len(dead_ids(path)) == 3
    result = taskq("dead", "requeue", "-d", path, "-Q", "sync", "--yes")
    assert (result.exit_code, result.stdout) == (0, "requeued 1 dead letter\n")
    assert state(path, ids["sync"]) == "ready"
    result = taskq("dead", "requeue", "-d", path, "--all", "--limit", "1", "-y")
    assert result.stdout == "requeued 1 dead letter\n"
    assert state(path, ids["mail"]) == "ready"


def test_a_person_is_asked_with_the_number_of_jobs(
    path: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskq.cli.many._is_asked", lambda: True)
    result = taskq("dead", "purge", "-d", path, "--all", data=b"n\n")
    assert result.exit_code == 130
    assert "Purge 3 jobs? [y/N]" in result.output
    assert len(dead_ids(path)) == 3
    result = taskq("dead", "purge", "-d", path, "-Q", "sync", data=b"y\n")
    assert result.exit_code == 0
    assert "purged 1 dead letter" in result.stdout
    assert ids["sync"] not in dead_ids(path)
    result = taskq("dead", "purge", "-d", path, "-Q", "sync", data=b"")
    assert (result.exit_code, result.stdout) == (0, "purged 0 dead letters\n")


def test_purge_forgets_the_job(path: Path, ids: dict[str, str]) -> None:
    result = taskq("dead", "purge", ids["mail"], "-d", path)
    assert (result.exit_code, result.stdout) == (0, "purged 1 dead letter\n")
    assert taskq("show", ids["mail"], "-d", path).exit_code == 1
    result = taskq("dead", "purge", ids["mail"], "-d", path)
    assert result.exit_code == 1
    assert f"there is no job {ids['mail']}" in result.stderr
    assert taskq_json("dead", "purge", "-d", path, "--all", "-y")["purged"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name job ids, or choose dead letters"),
        (("x-1", "--all"), "name job ids, or choose dead letters"),
        (("-Q", "a", "--all"), "name job ids, or choose dead letters"),
        (("x-1", "--dry-run"), "are for filters and --all, not for job ids"),
        (("nonsense",), "is no job id"),
        (("--error", "a", "--match", "b"), "either --error or --match"),
        (("--match", "("), "is no regular expression"),
        (("--since", "soon"), "--since 'soon': give a span back from now"),
    ],
)
@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_what_cannot_be_meant_is_refused(
    path: Path, ids: dict[str, str], verb: str, arguments: tuple[str, ...], message: str
) -> None:
    result = taskq("dead", verb, "-d", path, "-y", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(dead_ids(path)) == 3


def test_the_group_tells_its_commands() -> None:
    result = taskq("dead", "--help")
    assert result.exit_code == 0
    for verb in ("ls", "show", "requeue", "purge"):
        assert f"\n  {verb} " in result.stdout
        assert "--data-dir" in taskq("dead", verb, "--help").stdout
