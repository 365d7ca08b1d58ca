"""A worker's messages to its service manager, read from a real socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskq_workers.process.supervisor import Notifier
from tests.processes.harness import SCRIPTS, Child

SECONDS = 30


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the manager's end of the socket."""
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        first.bind(str(tmp_path / "notify"))
        first.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield first


def told(manager: socket.socket, word: str) -> list[str]:
    while True:
        lines = manager.recv(4_096).decode().splitlines()
        if lines[0].startswith(word):
            return lines


def start_worker(path: Path, *options: object) -> Child:
    command = ("-m", "taskq", "worker", "guarded:app", "-d", path / "data", *options)
    return Child(sys.executable, *command, cwd=SCRIPTS)


@pytest.mark.parametrize("options", [(), pytest.param(("--processes", 2), marks=pytest.mark.slow)])
def test_a_worker_tells_that_it_is_ready_and_that_it_stops(
    tmp_path: Path,
    manager: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[object, ...],
) -> None:
    """And that it lives, as often as the watchdog wants; a guard for all its processes."""
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with start_worker(tmp_path, *options) as worker:
        assert told(manager, "READY=1")[1].startswith("STATUS=")
        for _ in range(5):
            told(manager, "WATCHDOG=1")
        worker.send(signal.SIGTERM)
        told(manager, "STOPPING=1")
        assert worker.wait() == 0


def test_a_replacement_is_told_as_reloading_and_ends_with_ready(
    tmp_path: Path, manager: socket.socket
) -> None:
    with start_worker(tmp_path, "--processes", 1) as guard:
        told(manager, "READY=1")
        guard.send(signal.SIGHUP)
        assert told(manager, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        told(manager, "READY=1")
        guard.send(signal.SIGTERM)
        assert guard.wait() == 0


def test_a_watchdog_that_is_for_another_process_gets_nothing(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    assert Notifier().watchdog_seconds == 1.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Notifier().watchdog_seconds == 1.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier().watchdog_seconds == 0


def test_an_abstract_address_is_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as first:
        name = f"taskq-test-{os.getpid()}"
        first.bind(f"\0{name}")
        first.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        Notifier().ready("here")
        assert first.recv(100) == b"READY=1\nSTATUS=here"


def test_a_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    Notifier().ready("here")
    monkeypatch.delenv("NOTIFY_SOCKET")
    Notifier().stopping()
