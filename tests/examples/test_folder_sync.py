"""The example from its first file to its last check, on a tree made by the test."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from examples.folder_sync.display import display
from examples.folder_sync.enqueue import priority
from examples.folder_sync.receiver import Receiver
from examples.folder_sync.run import Sync
from examples.folder_sync.scan import scan
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


@pytest.mark.slow
def test_a_tree_of_one_file_is_synced_too(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "only").write_text("one")
    tree, work, queue = (tmp_path / name for name in ("tree", "w", "q"))
    with display() as shown:
        assert Sync(source=tree, work=work, queue=queue, display=shown).run().different == ()
    assert list((tmp_path / "w" / "parts").iterdir()) == []


def test_demo_refuses_a_queue_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "taskq.json").touch()
    result = CliRunner().invoke(main, ["demo", "-d", str(tmp_path / "queue")])
    assert result.exit_code == 2
    assert "is not empty; give the demo a new directory" in result.stderr


def test_demo_refuses_to_sync_its_own_files(tmp_path: Path) -> None:
    words = ["demo", "--directory", str(tmp_path), "-d", str(tmp_path / "queue")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "would sync it to itself" in result.stderr


def test_demo_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("httpx", "no_such_module_here"))
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert result.stderr == f"taskq: {missing('the demo', 'no_such_module_here', 'demo')}\n"


def test_an_empty_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    result = CliRunner().invoke(main, ["demo", "--directory", str(tmp_path / "tree")])
    assert result.exit_code == 1
    assert "holds no files to sync" in result.stderr


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 9), (1_023, 9), (1_024, 8), (4_096, 7), (2**24, 1), (2**40, 0)]
)
def test_small_files_come_first(size: int, expected: int) -> None:
    assert priority(size) == expected


def test_a_scan_leaves_out_what_cannot_be_sent(tmp_path: Path) -> None:
    result = scan(make_tree(tmp_path))
    assert len(result.entries) == FILES
    assert result.skipped == [str(tmp_path / "link")]
    assert [entry.size for entry in result.entries] == sorted(e.size for e in result.entries)


def put(body: bytes, digest: str | None = None) -> dict[str, object]:
    """Return the arguments of a request that sends ``body``."""
    return {
        "content": body,
        "headers": {"x-content-sha256": digest or hashlib.sha256(body).hexdigest()},
    }


def client(receiver: Receiver) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=receiver.app()), base_url="http://receiver"
    )


def files(base: Path) -> list[str]:
    return sorted(p.relative_to(base).as_posix() for p in base.rglob("*") if p.is_file())


async def test_a_file_is_stored_under_its_path(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    async with client(receiver) as http:
        answer = await http.request("PUT", "/files/a/b%20%23.txt", **put(b"hello"))  # type: ignore[arg-type]
    assert answer.status_code == 201
    assert (tmp_path / "files/a/b #.txt").read_bytes() == b"hello"
    assert (receiver.received, receiver.failed, receiver.held) == ({"a/b #.txt"}, 0, 0)


@pytest.mark.parametrize(
    "path",
    ["%2e%2e/evil", "a/%2e%2e/%2e%2e/evil", "/etc/evil", "a//b", "%2e", "a/", "", "a%00b"],
)
async def test_a_path_never_leaves_the_tree(tmp_path: Path, path: str) -> None:
    async with client(Receiver(tmp_path / "base")) as http:
        answer = await http.request("PUT", f"/files/{path}", **put(b"evil"))  # type: ignore[arg-type]
    assert answer.status_code == 400
    assert files(tmp_path) == []


async def test_a_link_inside_the_tree_is_not_followed_out_of_it(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path / "base")
    (tmp_path / "outside").mkdir()
    (tmp_path / "base/files/link").symlink_to(tmp_path / "outside")
    async with client(receiver) as http:
        answer = await http.request("PUT", "/files/link/evil", **put(b"evil"))  # type: ignore[arg-type]
    assert answer.status_code == 400
    assert files(tmp_path / "outside") == []


@pytest.mark.parametrize(
    ("body", "digest", "status"), [(b"x" * 101, None, 413), (b"other", "0" * 64, 422)]
)
async def test_what_is_too_large_or_not_as_promised_leaves_nothing(
    tmp_path: Path, body: bytes, digest: str | None, status: int
) -> None:
    async with client(Receiver(tmp_path, bytes_max=100)) as http:
        answer = await http.request("PUT", "/files/a", **put(body, digest))  # type: ignore[arg-type]
    assert answer.status_code == status
    assert files(tmp_path) == []


async def test_a_file_where_a_directory_should_be_is_refused(tmp_path: Path) -> None:
    async with client(Receiver(tmp_path)) as http:
        await http.request("PUT", "/files/a", **put(b"file"))  # type: ignore[arg-type]
        answer = await http.request("PUT", "/files/a/b", **put(b"below"))  # type: ignore[arg-type]
    assert answer.status_code == 409
    assert files(tmp_path) == ["files/a"]


async def test_the_share_of_failures_is_about_what_was_asked_for(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, fail_share=0.5)
    async with client(receiver) as http:
        answers = [await http.request("PUT", "/files/a", **put(b"x")) for _ in range(40)]  # type: ignore[arg-type]
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {201, 503}
    assert 10 <= receiver.failed == codes.count(503) <= 30
