"""Commands that write files or remove some: export, report, compact, backup, restore."""

import asyncio
import json
import logging
import os
import shutil
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from taskq import Put, Shards, TaskLog, TaskQ, retry
from taskq.arrow import DETAILS
from taskq.cli.main import main
from taskq.errors import JobFailed, UsageError
from taskq.log.read.reader import LogReader
from taskq.log.upkeep.backup import excerpt
from taskq.log.upkeep.health import Check, check_health
from taskq.log.upkeep.upkeep import Upkeep
from tests.cli.helpers import Sample, taskq, taskq_json
from tests.cli.logs import fill_damaged, fill_grown
from tests.processes.harness import same_log


def lines(*arguments: object) -> list[dict[str, Any]]:
    result = taskq("export", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_only_python_takes_for_json_is_exported_as_text_or_bytes(tmp_path: Path) -> None:
    """A line that another program cannot read would be worse than none."""
    with TaskLog.open(tmp_path / "q") as log:
        for body in (b"NaN", b"[Infinity]", b"[" * 100_000, b'"\xed\xa0\x80"', b"1e5"):
            log.put_sync(body)
    encodings = [job["payload"]["encoding"] for job in lines("-d", tmp_path / "q")]
    assert encodings == ["text", "text", "text", "base64", "json"]


def test_a_record_is_the_same_document_in_tail_and_export(sample: Sample) -> None:
    """Only tail names the job of each record; export does where it filters by name."""
    tailed = taskq("tail", "-n", "10000", "--json", "-d", sample.path).stdout.splitlines()
    unnamed = {"queue": None, "task": None}
    exported = [record | unnamed for record in lines("-d", sample.path, "--records")]
    assert [json.loads(line) | unnamed for line in tailed] == exported
    assert [record["lsn"] for record in exported] == list(range(1, 15))
    (mail,) = lines("-d", sample.path, "--records", "--queue", "mail")
    assert (mail["kind"], mail["payload"]["data"]) == ("enqueued", {"to": "a@b.c"})
    assert lines("-d", sample.path, "--records", "--before", "1h") == []


def test_a_job_is_the_same_document_in_show_and_export(sample: Sample) -> None:
    exported = lines("-d", sample.path)
    assert {job["id"] for job in exported} == set(sample.ids.values())
    for job in exported:
        shown = taskq_json("show", job["id"], "-d", sample.path)
        for attempt in (*shown["attempts"], *job["attempts"]):
            for name in ("pid", "worker", "host"):
                del attempt[name]
        assert job == {name: shown[name] for name in job}


def test_parquet_holds_the_same_jobs(sample: Sample, tmp_path: Path) -> None:
    target = tmp_path / "jobs.parquet"
    result = taskq("export", "-d", sample.path, "-o", target)
    assert result.exit_code == 0, result.output
    assert f"wrote {len(sample.ids)} jobs to {target}" in result.stderr
    rows = parquet.read_table(target).to_pylist()
    for row, job in zip(rows, lines("-d", sample.path), strict=True):
        assert (row["id"], row["state"]) == (job["id"], job["state"])
        assert row["enqueued_at"].isoformat() == job["enqueued_at"]
    (dead,) = (row for row in rows if row["id"] == sample.ids["dead"])
    assert (dead["payload"], dict(dead["headers"])) == (b"\xff\x00", {"from": "here"})
    assert [attempt["outcome"] for attempt in dead["attempts"]] == ["dead"]


@pytest.mark.parametrize(("options", "count"), [
    ([], 14), (["--task", "mail.send"], 1), (["--queue", "none"], 0), (["--queue", "default"], 11),
    (["--since", "1h", "--queue", "mail"], 1), (["--before", "1h", "--queue", "mail"], 0),
])  # fmt: skip
def test_every_format_exports_the_same_records(
    sample: Sample, options: list[str], count: int, tmp_path: Path
) -> None:
    """A job's later records, too, which do not name its queue; Parquet has the columns of Spark."""
    answer = lines("-d", sample.path, "--records", *options)
    assert len(answer) == count
    wanted = ("--records", "--format", "parquet", "-o", tmp_path / "records", *options)
    result = taskq("export", "-d", sample.path, *wanted)
    assert f"wrote {count} record" in result.stderr, result.output
    table = parquet.read_table(tmp_path / "records")
    rows = table.to_pylist()
    assert table.column_names == DETAILS.names
    assert [(row["lsn"], row["kind"], row["job_id"]) for row in rows] == [
        (record["lsn"], record["kind"], record["id"] or None) for record in answer
    ]
    assert [row["timestamp"].isoformat() for row in rows] == [record["time"] for record in answer]
    assert {row["device"] for row in rows} <= {sample.path.name}
    if not options:
        dead = next(row for row in rows if row["job_id"] == sample.ids["dead"])
        assert (dead["kind"], dead["value_bytes"]) == ("enqueued", b"\xff\x00")
        assert dict(dead["headers"]) == {"from": "here"}


def test_a_file_gets_its_name_once_it_is_whole(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that waits under a temporary name is written to."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "jobs.jsonl")

    target, planted = tmp_path / "jobs.jsonl", tmp_path / "jobs.jsonl.tmp"
    target.write_text("before")
    (tmp_path / "victim").write_text("precious")
    planted.symlink_to(tmp_path / "victim")
    there = sorted(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("taskq.cli.commands.export.json.dumps", fail)
        assert taskq("export", "-d", sample.path, "-o", target).exit_code == 1
    assert (target.read_text(), sorted(tmp_path.iterdir())) == ("before", there)
    assert taskq("export", "-d", sample.path, "-o", target).exit_code == 0
    assert len(target.read_text().splitlines()) == len(sample.ids)
    assert sorted(tmp_path.iterdir()) == there
    assert planted.is_symlink()
    assert planted.read_text() == "precious"


SECONDS = 30
PRIVATE = "the patient is well"


def ask(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
async def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
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


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe has no name in a folder there")
def test_a_pipe_is_written_to_and_a_directory_is_named(sample: Sample, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert taskq("export", "-d", sample.path, "-o", pipe).exit_code == 0
        assert os.read(reads, 1 << 16).decode() == taskq("export", "-d", sample.path).stdout
    finally:
        os.close(reads)
    assert pipe.is_fifo()
    result = taskq("export", "-d", sample.path, "-o", tmp_path)
    assert (result.exit_code, result.output) == (
        1,
        f"taskq: {tmp_path}: Is a directory. Check the path and its permissions\n",
    )


@pytest.mark.parametrize("with_payloads", [False, True])
async def test_a_case_file_is_read_like_a_log(ids: dict[str, str], with_payloads: bool) -> None:
    ask("report", "data", "-o", "case.zip", *(["--with-payloads"] if with_payloads else []))
    assert json.loads(ask("verify", "case.zip", "--json").stdout)["ok"] is True
    assert ask("ls", "case.zip", "--json").stdout == ask("ls", "data", "--json").stdout
    for name, job in ids.items():
        here = json.loads(ask("show", job, "-d", "data", "--json").stdout)
        there = json.loads(ask("show", job, "-d", "case.zip", "--json").stdout)
        assert PRIVATE in str(here), name
        assert (PRIVATE in str(there)) is with_payloads, name
        for attempt in [*here["attempts"], *there["attempts"]]:
            del attempt["pid"], attempt["worker"], attempt["host"]
        for body in ("payload", "result"):
            del here[body], there[body]
        assert here == there
        assert ask("timeline", job, "-d", "case.zip").stdout.count("\n") > 1
    assert "attempts are spent" in ask("why", ids["dead"], "-d", "case.zip").stdout
    with zipfile.ZipFile("case.zip") as case:
        names = [name for name in case.namelist() if PRIVATE.encode() in case.read(name)]
        assert bool(names) is with_payloads
        assert f"timelines/{ids['dead']}.json" in case.namelist()
        (letter,) = json.loads(case.read("dead.json"))
        assert letter["id"] == ids["dead"]
        assert json.loads(case.read("verify.json"))["ok"] is True
        assert json.loads(case.read("case.json"))["with_payloads"] is with_payloads


async def test_records_before_the_moment_are_left_out(ids: dict[str, str], tmp_path: Path) -> None:
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
async def test_exported_output_has_no_secrets(ids: dict[str, str], option: list[str]) -> None:
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


async def test_settings_hide_secrets(ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKQ_HUB_URL", "https://ada:lovelace@hub.example/")
    monkeypatch.setenv("TASKQ_HUB_TOKEN", "countess-lovelace")
    ask("report", "data")
    with zipfile.ZipFile("case.zip") as case:
        answer = case.read("settings.json").decode()
    assert "lovelace" not in answer
    settings = json.loads(answer)["settings"]
    assert settings["durability"] == "fsync"
    shown = {"url": "https://…@hub.example/", "token_file": None, "token": "(set)"}
    assert settings["hub"].items() >= shown.items()
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


@pytest.mark.parametrize(("harm", "message"), [
    ("encrypted", "is encrypted, or packed in a way"),
    ("packing", "is encrypted, or packed in a way"),
    ("size", "unpacks to 3.0 GiB, and"),
    ("bytes", "does not read (Bad CRC-32"),
])  # fmt: skip
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


@pytest.mark.posix("a file has the rights of its folder")
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


@pytest.mark.parametrize("command", [
    "put x", "cancel -Q default --yes", "pause default", "dead requeue --all --yes",
    "replay --all", "tail --reader billing -n 1", "reader ls",
])  # fmt: skip
def test_a_command_removes_nothing_by_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Its settings come from the environment and files; an app may have said otherwise in code."""
    assert taskq("put", "x", "-d", tmp_path).exit_code == 0
    looks: list[Upkeep] = []

    def work(upkeep: Upkeep) -> object:
        looks.append(upkeep)
        yield None

    monkeypatch.setattr(Upkeep, "_work", work)
    result = taskq(*command.split(), "-d", tmp_path)
    assert result.exit_code == 0, result.output
    assert not looks


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "log").glob("*.log"))


def test_compact_names_its_settings_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path
    asyncio.run(fill_grown(path))
    here = path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / ".env").write_text("OTHER=1\nTASKQ_KEEP=0s\n")
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert "settings" not in taskq("compact", "-d", path, "--dry-run").stderr
    (here / "taskq.toml").write_text(f"keep_segments = 9\ndata_dir = '{path}'\n")
    output = taskq("compact", "--dry-run")
    assert output.stderr == f"taskq: with the settings of {here / '.env'}, {here / 'taskq.toml'}\n"
    assert "would go" in output.stdout
    (path / "taskq.toml").write_text("keep = '0s'\n")
    as_json = taskq_json("compact", "-d", path, "--dry-run")
    assert as_json["settings_files"] == [str(path / "taskq.toml")]


@pytest.mark.parametrize("name", [".env", "taskq.toml", "pyproject.toml"])
def test_settings_that_another_user_could_plant_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In a directory that all may write to; elsewhere who owns the file is nobody's business."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    monkeypatch.setattr("os.geteuid", lambda: 12_345)
    assert TaskQ().name == ""
    tmp_path.chmod(0o1777)
    if os.getuid() == 0:
        assert TaskQ().name == "", "root's files are root's"
        os.chown(tmp_path / name, 12_346, -1)
        with pytest.raises(UsageError, match=rf"{name} is another user's, in a directory that all"):
            TaskQ()
    os.chown(tmp_path, (tmp_path / name).stat().st_uid, -1)
    assert TaskQ().name == "", "who owns the directory may"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    asyncio.run(fill_damaged(tmp_path / "queue"))
    return tmp_path / "queue"


def files(path: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in path.rglob("*") if path.is_file()}


def test_a_repair_leaves_the_damaged_log_as_it_is(damaged: Path, tmp_path: Path) -> None:
    before = files(damaged)
    for words in ((), ("--to", tmp_path / "new")):
        assert taskq("repair", "-d", damaged, *words).exit_code == 0
        assert files(damaged) == before


async def test_a_repair_is_refused_beside_an_open_log(damaged: Path, tmp_path: Path) -> None:
    async with TaskLog.open(damaged, name="the-worker"):
        result = taskq("repair", "-d", damaged, "--to", tmp_path / "new")
    assert result.exit_code == 1
    assert f"is open in process {os.getpid()} (the-worker on " in result.stderr
    assert "stop it, then repair" in result.stderr
    assert not (tmp_path / "new").exists()


def test_repair_of_shards_keeps_the_name_of_each_shard(tmp_path: Path) -> None:
    with TaskQ(shards=Shards(tmp_path / "root")) as app:
        app.enqueue_by_name_sync("mail.send", "Ada")
    [segment] = [
        path
        for path in (tmp_path / "root").glob("*/log/*.log")
        if b"mail.send" in path.read_bytes()
    ]
    data = bytearray(segment.read_bytes())
    data[data.index(b"mail.send")] ^= 1
    segment.write_bytes(data)
    result = taskq("repair", tmp_path / "root", "--to", tmp_path / "new")
    assert "1 lost" in result.stdout
    [new] = (tmp_path / "new").iterdir()
    assert new.name == segment.parents[1].name
    assert taskq("verify", new).exit_code == 0


_KIB = 1024


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "data"
    with TaskLog.open(path, segment_bytes=64 * _KIB) as log:
        while len(list((path / "log").glob("*.log"))) < 6:
            log.put_many_sync([Put(payload=os.urandom(4 * _KIB))] * 5)
        log.put_many_sync([Put(payload=b"{}")] * 6)
    return path


@pytest.fixture
def queue(whole: Path, tmp_path: Path) -> Path:
    path = shutil.copytree(whole, tmp_path / "queue", ignore=shutil.ignore_patterns("*.pipe"))
    same_log(path)
    return path


def _log_check(path: Path) -> Check:
    return next(check for check in check_health(path) if check.name == "log")


@pytest.mark.parametrize(("number", "size"), [(0, None), (2, 0), (2, 64), (5, None), (5, 64)])
def test_every_check_reports_a_lost_segment_until_it_is_accepted(
    queue: Path, number: int, size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert taskq("verify", "-d", queue).exit_code == 0
    assert _log_check(queue).ok
    victim = sorted((queue / "log").glob("*.log"))[number]
    if size is None:
        victim.unlink()
    else:
        os.truncate(victim, size)
    assert not _log_check(queue).ok
    assert "taskq repair" in _log_check(queue).detail
    for _ in range(2):
        result = taskq("verify", "-d", queue)
        assert (result.exit_code, "records are lost, of lsns" in result.stdout) == (1, True)
        with caplog.at_level(logging.WARNING, "taskq"):
            assert taskq("put", "-d", queue, "[1]").exit_code == 0
        assert "records are lost, of lsns" in caplog.text
        caplog.clear()
    new = queue.with_name("new")
    assert taskq("repair", "-d", queue, "--to", new).exit_code == 0
    assert taskq("verify", "-d", queue).exit_code == 1
    result = taskq("verify", "-d", new)
    assert (result.exit_code, "no damage" in result.stdout) == (0, True)
    assert ("lsns were lost at lsn" in result.stdout) is (number == 2)
    assert _log_check(new).ok
    with caplog.at_level(logging.WARNING, "taskq"):
        assert taskq("put", "-d", new, "[1]").exit_code == 0
    assert "lost" not in caplog.text
    assert taskq_json("ls", "-d", new)
