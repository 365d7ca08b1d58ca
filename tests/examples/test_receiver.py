"""The example's receiver: what it takes, and what it does not."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import httpx
import pytest

from examples.folder_sync.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path


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
