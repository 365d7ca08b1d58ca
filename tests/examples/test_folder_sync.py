"""The example from its first file to its last check, on a tree made by the test."""

import hashlib
import random
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from examples.folder_sync.receiver import Receiver
from taskq.cli.commands import demo
from taskq.cli.main import main
from taskq.core.model import State
from taskq.extras import missing
from taskq.log.read.reader import LogReader
from tests.programs import run_taskq

FILES = 80
ODD_NAMES = ("a b.txt", "100%.txt", "q?x#y.txt", "grüße.txt", "it's.txt", "-dash", "a\\b", "c:d")


def make_tree(root: Path) -> Path:
    """Small files in nested directories, odd names, an empty file, one sent in blocks, a link."""
    chance = random.Random(7)
    for number in range(FILES - len(ODD_NAMES) - 2):
        file = root / f"dir{number % 7}" / f"sub{number % 3}" / f"file{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.randrange(1, 5_000)))
    for name in ODD_NAMES:
        (root / name).write_text(name)
    (root / "empty").touch()
    (root / "large").write_bytes(chance.randbytes(700_000))
    (root / "link").symlink_to("large")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").touch()
    return root


@pytest.mark.long("a worker is killed half-way, and another goes on")
def test_every_file_arrives_through_an_offline_receiver_failures_and_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, queue = make_tree(tmp_path / "tree"), tmp_path / "queue"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run_taskq("demo", "--directory", tree, "-d", queue, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert f"already queued: {FILES}\n" in done.stdout
    answer = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert answer["files"].startswith(f"{FILES} (1 skipped")
    assert (answer["kills survived"], answer["identical"]) == ("1", "yes")
    assert int(answer["attempts"]) == FILES + int(answer["retries"]) > FILES
    assert list(tmp_path.glob("taskq-demo-*")) == []
    jobs = LogReader.open(str(queue)).jobs(None, None, None, 2 * FILES)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    # The kill met uploads in flight: their claims were taken back, and they ran again.
    assert any("lost" in attempt.outcome for job in jobs for attempt in job.attempts)


@pytest.mark.parametrize(("words", "code", "message"), [
    (["-d", "used"], 2, "is not empty; give the demo a new directory"),
    (["--directory", ".", "-d", "queue"], 2, "would sync it to itself"),
    (["--directory", "empty"], 1, "holds no files to sync"),
])  # fmt: skip
def test_demo_refuses_what_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("used", "empty"):
        Path(name).mkdir()
    Path("used/taskq.json").touch()
    result = CliRunner().invoke(main, ["demo", *words])
    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr


def test_demo_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("httpx", "no_such_module_here"))
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == f"taskq: {missing('the demo', 'no_such_module_here', 'demo')}\n"


async def sent(receiver: Receiver, path: str, body: bytes, digest: str = "") -> int:
    transport = httpx.ASGITransport(app=receiver.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
        head = {"x-content-sha256": digest or hashlib.sha256(body).hexdigest()}
        return (await client.put(f"/files/{path}", content=body, headers=head)).status_code


def files(base: Path) -> list[str]:
    return sorted(p.relative_to(base).as_posix() for p in base.rglob("*") if p.is_file())


#: Places of files that would leave the tree.
OUTSIDE = ("%2e%2e/evil", "a/%2e%2e/%2e%2e/evil", "/etc/evil", "a//b", "%2e", "a/", "", "a%00b")


async def test_a_file_is_stored_under_its_path_and_nothing_that_is_wrong(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "base", bytes_max=100)
    (tmp_path / "outside").mkdir()
    (tmp_path / "base/files/link").symlink_to(tmp_path / "outside")
    assert await sent(receiver, "a/b%20%23.txt", b"hello") == 201
    for path in (*OUTSIDE, "link/evil"):
        assert await sent(receiver, path, b"evil") == 400, path
    assert await sent(receiver, "large", b"x" * 101) == 413
    assert await sent(receiver, "not-as-promised", b"other", "0" * 64) == 422
    assert await sent(receiver, "a/b%20%23.txt/below", b"of a file") == 409
    assert files(tmp_path) == ["base/files/a/b #.txt"]
    assert (tmp_path / "base/files/a/b #.txt").read_bytes() == b"hello"
    assert (receiver.received, receiver.failed, receiver.held) == ({"a/b #.txt"}, 0, 0)
