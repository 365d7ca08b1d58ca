"""``taskq report``: a case file has what others need, and read commands open it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskq import TaskLog, TaskQ, retry
from taskq.cli.main import main
from taskq.errors import JobFailed
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.backup import excerpt

SECONDS = 30
PRIVATE = "the patient is well"


def ask(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
async def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Ids of jobs in ``data``, over several segments, of which compaction took the first."""
    monkeypatch.chdir(tmp_path)
    app = TaskQ("data", segment_bytes=64 * 1024)

    @app.task(name="fail", retry=retry.fixed(2, delay=0))
    async def fail(text: str) -> None:
        raise ValueError("no way")

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    async with app:
        async with app.worker():
            dead = await fail.enqueue(PRIVATE)
            with pytest.raises(JobFailed):
                await dead.result(SECONDS)
            for filler in await echo.enqueue_many([(PRIVATE * 500,) for _ in range(10)]):
                await filler.result(SECONDS)
            assert (await app.compact(keep=0)).carried
            done = await echo.enqueue(PRIVATE)
            await done.result(SECONDS)
        waits = await echo.options(key="ada", delay="1h").enqueue(PRIVATE)
    return {"dead": dead.id, "done": done.id, "waits": waits.id}


async def test_read_commands_open_a_case_file_and_find_no_payload(ids: dict[str, str]) -> None:
    ask("report", "data", "-o", "case.zip")
    answer = ask("verify", "case.zip", "--json")
    assert json.loads(answer.stdout)["ok"] is True
    assert ask("ls", "case.zip", "--json").stdout == ask("ls", "data", "--json").stdout
    for name, job in ids.items():
        here = json.loads(ask("show", job, "-d", "data", "--json").stdout)
        there = json.loads(ask("show", job, "-d", "case.zip", "--json").stdout)
        assert PRIVATE in str(here), name
        assert PRIVATE not in str(there), name
        for attempt in [*here["attempts"], *there["attempts"]]:
            del attempt["pid"], attempt["worker"], attempt["host"]
        for body in ("payload", "result"):
            del here[body], there[body]
        assert here == there
        assert ask("timeline", job, "-d", "case.zip").stdout.count("\n") > 1
    assert "attempts are spent" in ask("why", ids["dead"], "-d", "case.zip").stdout
    with zipfile.ZipFile("case.zip") as case:
        for name in case.namelist():
            assert PRIVATE.encode() not in case.read(name), name
        assert f"timelines/{ids['dead']}.json" in case.namelist()
        (letter,) = json.loads(case.read("dead.json"))
        assert letter["id"] == ids["dead"]
        assert json.loads(case.read("verify.json"))["ok"] is True
        assert json.loads(case.read("case.json"))["with_payloads"] is False


async def test_payloads_are_in_it_if_asked(ids: dict[str, str]) -> None:
    ask("report", "-d", "data", "-o", "case.zip", "--with-payloads")
    for job in ids.values():
        assert PRIVATE in ask("show", job, "-d", "case.zip").stdout
    assert json.loads(ask("verify", "case.zip", "--json").stdout)["ok"] is True


async def test_what_was_written_before_the_moment_is_left_out(
    ids: dict[str, str], tmp_path: Path
) -> None:
    with LogReader.open("data") as reader:
        story = reader.timeline(reader.parse_id(ids["done"]))
        ended = story[-1]
        segments = list(excerpt(reader.journal, ended.time_ns, bodies=False))
    (tmp_path / "part/log").mkdir(parents=True)
    shutil.copy("data/taskq.json", "part")
    for name, data in segments:
        (tmp_path / "part/log" / name).write_bytes(data)
    assert json.loads(ask("verify", "part", "--json").stdout)["ok"] is True
    answer = {job["id"] for job in json.loads(ask("ls", "part", "--json").stdout)}
    assert ids["waits"] in answer
    assert ids["done"] not in answer
    assert json.loads(ask("stats", "part", "--json").stdout)["queues"][0]["scheduled"] == 1
    # Another process adds to it as to any log: nothing in it stands in the way of a fold.
    async with TaskQ("part") as app:
        await app.enqueue_by_name("echo", "x")
    assert json.loads(ask("verify", "part", "--json").stdout)["ok"] is True


@pytest.mark.parametrize("option", [[], ["--show-secrets"]])
async def test_what_commands_tell_in_it_has_no_secrets(
    ids: dict[str, str], option: list[str]
) -> None:
    async with TaskLog.open("data") as log:
        job = await log.put(b"x", priority=9, attempts=2, headers={"auth": "hunter2", "to": "x"})
        (delivery,) = await log.claim(1, queues=["default"])
        await log.nack(delivery, "ValueError: password='hunter2'", delay=0)
        (delivery,) = await log.claim(1, queues=["default"])
        await log.nack(delivery, "ValueError: token=hunter2")
    assert delivery.job_id == job
    ask("report", "data", *option)
    with zipfile.ZipFile("case.zip") as case:
        names = [name for name in case.namelist() if b"hunter2" in case.read(name)]
    assert bool(names) is bool(option)
    assert json.loads(ask("verify", "case.zip", "--json").stdout)["ok"] is True
    shown = json.loads(ask("show", job, "-d", "case.zip", "--json").stdout)
    assert shown["headers"] == {"auth": "hunter2" if option else "(set)", "to": "x"}
    assert len(shown["attempts"]) == 2


async def test_settings_are_told_without_what_is_secret(
    ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKQ_HUB_URL", "https://ada:lovelace@hub.example/")
    monkeypatch.setenv("TASKQ_HUB_TOKEN", "countess-lovelace")
    ask("report", "data")
    with zipfile.ZipFile("case.zip") as case:
        answer = case.read("settings.json").decode()
    assert "lovelace" not in answer
    settings = json.loads(answer)["settings"]
    assert settings["durability"] == "fsync"
    assert (
        settings["hub"].items()
        >= {
            "url": "https://…@hub.example/",
            "token_file": None,
            "token": "(set)",
        }.items()
    )
    assert "is there already" in ask("report", "data", code=1).output


def test_a_zip_that_is_no_case_file_is_refused_and_nothing_leaves_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("other.zip", "w") as other:
        other.writestr("thesis.txt", "x")
    assert "no case file" in ask("ls", "other.zip", code=1).output
    outside = tmp_path / "evil.log"
    with zipfile.ZipFile("bad.zip", "w") as bad:
        bad.writestr("taskq.json", "{}")
        bad.writestr("log/../../evil.log", "x")
        bad.writestr(str(outside), "x")
    ask("ls", "bad.zip", code=1)
    assert not outside.exists()
    (tmp_path / "text").write_text("x")
    assert "is not a task log" in ask("ls", "text", code=1).output


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("encrypted", "is encrypted, or packed in a way"),
        ("packing", "is encrypted, or packed in a way"),
        ("size", "unpacks to 3.0 GiB, and"),
        ("bytes", "does not read (Bad CRC-32"),
    ],
)
def test_a_case_file_is_looked_at_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("taskq.cli.casefile._UNPACKED_BYTES_MAX", 1 << 30)
    packing = zipfile.ZIP_LZMA if harm == "packing" else zipfile.ZIP_STORED
    with zipfile.ZipFile("case.zip", "w", packing) as case:
        case.writestr("taskq.json", "{}")
        case.writestr(f"log/{1:020}.log", b"segment")
        if harm == "size":
            case.infolist()[1].file_size = 3 << 30
        if harm == "encrypted":
            case.infolist()[1].flag_bits |= 1
    if harm == "bytes":
        data = Path("case.zip").read_bytes()
        Path("case.zip").write_bytes(data.replace(b"segment", b"segmenT"))
    failed = ask("ls", "case.zip", code=1)
    assert message in failed.output
    assert "Traceback" not in failed.output


@pytest.mark.parametrize("words", [("report", "data", "-o"), ("export", "-d", "data", "-o")])
def test_what_is_taken_out_of_a_log_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    TaskQ(tmp_path / "data").store().close()
    before = os.umask(0)
    try:
        ask(*words, "out.jsonl")
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("out.jsonl").stat().st_mode) == 0o600


def test_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    TaskQ(tmp_path / "data").store().close()
    assert "no lsn" in ask("report", tmp_path / "data", "--since", "7", code=2).output
