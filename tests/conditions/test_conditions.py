"""Conditions as values: how they are written, compared, named and probed."""

import asyncio
import errno
import socket
import threading
import urllib.error
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from taskq import TaskQ
from taskq.conditions import condition, disk_free, on_power, online, unmetered
from taskq.conditions.base import Supply, aside, is_on_power, read_supplies, say_once
from taskq.conditions.breakers import is_network_failure
from taskq.conditions.network import has_route, metered_devices


def always() -> bool:
    return True


def needs_a_host(host: str) -> bool:
    return host == "here"


async def never() -> bool:
    return False


def test_conditions_are_equal_and_hash_by_what_they_say(app: TaskQ) -> None:
    """So a task keeps each once."""
    assert online("a.example:443") == online("a.example:443") != online("a.example:80")
    assert disk_free("1GB") == disk_free(10**9) != disk_free("1GiB")
    assert len({on_power(), on_power(), unmetered(), unmetered()}) == 2
    assert condition(always) == condition(always) != condition(never)
    made = condition(always, every="5s", timeout=0.001)
    assert (made.interval_seconds, made.timeout_seconds) == (5, 0.001)
    requires: list[Any] = [online("a:1"), online("a:1"), always, always]
    assert app.task(requires=requires)(needs_a_host).requires == (online("a:1"), condition(always))


@pytest.mark.parametrize("order", [1, -1], ids=["refused first", "answered first"])
async def test_a_host_is_online_if_one_of_its_addresses_answers(
    monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = [closed.getsockname(), server.sockets[0].getsockname()]
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places[::order]
        ]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: addresses)
        assert await online("two.localhost:80").problem() == ""
        del addresses[places[::order].index(places[1])]
        assert await online("two.localhost:80").problem() == "Connection refused"
        addresses.clear()
        assert await online("two.localhost:80").problem() == "two.localhost has no address"
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("answered", [1, 3, None])
async def test_a_host_without_an_answer_is_asked_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch, answered: int | None
) -> None:
    asked = 0

    async def connect(*_: object) -> None:
        nonlocal asked
        asked += 1
        if asked != answered:
            await asyncio.Event().wait()

    monkeypatch.setattr("taskq.conditions.network._connect", connect)
    monkeypatch.setattr("taskq.conditions.network.ATTEMPT_SECONDS", 0.01)
    problem = await online("localhost:80").problem()
    assert problem == ("" if answered else "it does not answer within 0.06 s")
    assert asked == (answered or 6)


async def test_a_name_that_nobody_knows_is_offline() -> None:
    assert await online("no-such-host.invalid:80").problem() != ""


async def test_disk_free_looks_at_the_disk_of_the_data_directory(tmp_path: Path) -> None:
    roomy, tight = disk_free(1).bound(tmp_path), disk_free(2**62).bound(tmp_path)
    assert await roomy.problem() == ""
    assert "are free" in await tight.problem()
    elsewhere = disk_free(1, tmp_path)
    assert elsewhere.bound(tmp_path / "other") is elsewhere
    with pytest.raises(FileNotFoundError):
        await disk_free(1, tmp_path / "nowhere").problem()


@pytest.mark.parametrize(
    ("supplies", "holds"),
    [
        ([], True),
        ([("Mains", "1", "", "")], True),
        ([("Mains", "0", "", ""), ("Battery", "", "Discharging", "")], False),
        ([("USB", "1", "", ""), ("Battery", "", "Discharging", "")], True),
        ([("Battery", "", "Full", "")], True),
        ([("Mains", "0", "", ""), ("Battery", "", "Charging", "")], True),
        ([("Battery", "", "Discharging", "Device")], True),
    ],
)
def test_a_machine_is_on_power_unless_its_own_battery_drains(
    tmp_path: Path, supplies: list[tuple[str, str, str, str]], *, holds: bool
) -> None:
    for number, supply in enumerate(supplies):
        folder = tmp_path / f"supply{number}"
        folder.mkdir()
        for file, word in zip(("type", "online", "status", "scope"), supply, strict=True):
            if word:
                (folder / file).write_text(f"{word}\n")
    read = read_supplies(tmp_path)
    assert read is not None
    assert read == [
        Supply(kind=kind, online=line, status=status, scope=scope)
        for kind, line, status, scope in supplies
    ]
    assert is_on_power(read) is holds


async def test_a_condition_that_the_machine_cannot_measure_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("taskq.conditions.base._SUPPLIES", tmp_path / "none")
    for _ in range(2):
        assert await unmetered().problem() == ""
        assert await on_power().problem() == ""
    messages = [record.getMessage() for record in caplog.records]
    assert sorted(line.partition(" ")[0] for line in messages) == ["on_power()", "unmetered()"]


def test_a_connected_device_that_is_metered_is_named() -> None:
    template = "GENERAL.DEVICE:{}\nGENERAL.STATE:{}\nGENERAL.METERED:{}\n"
    wire = template.format("eth0", "100 (connected)", "no (guessed)")
    phone = template.format("wwan0", "100 (connected)", "yes (guessed)")
    away = template.format("wlan0", "30 (disconnected)", "yes")
    assert metered_devices(f"{wire}\n{away}") == ""
    assert metered_devices(f"{wire}\n{phone}") == "the network is metered (wwan0)"


async def test_nmcli_is_asked_in_words_that_do_not_depend_on_the_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nmcli"
    program.write_text(
        '#!/bin/sh\ntest "$LC_ALL" = C || exit 1\n'
        "printf 'GENERAL.DEVICE:wwan0\\nGENERAL.STATE:100 (connected)\\nGENERAL.METERED:yes\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert await unmetered().problem() == "the network is metered (wwan0)"


async def test_sync_functions_are_asked_in_a_thread_and_may_raise() -> None:
    asked_in: list[str] = []

    def check() -> bool:
        asked_in.append(threading.current_thread().name)
        return False

    assert await condition(check).problem() == "it returned False"
    assert await condition(never).problem() == "it returned False"
    assert asked_in == ["taskq-probe"]

    def broken() -> bool:
        raise StopIteration("no")

    with pytest.raises(RuntimeError, match="StopIteration"):
        await condition(broken).problem()


async def test_calls_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskq.conditions.base._aside", threading.BoundedSemaphore(1))
    with monkeypatch.context() as none_left:
        refusal = Mock(side_effect=RuntimeError("can't start new thread"))
        none_left.setattr(threading.Thread, "start", refusal)
        with pytest.raises(RuntimeError, match="start"):
            await aside(always)
    go_on = threading.Event()
    waits = asyncio.create_task(aside(go_on.wait))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="hang"):
        await aside(always)
    go_on.set()
    assert await waits


def test_the_kernel_knows_the_way_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any) -> Any:
        raise OSError(97, "Address family not supported by protocol")

    assert has_route("127.0.0.1")
    assert has_route("localhost")
    monkeypatch.setattr(socket, "socket", refuse)
    assert not has_route("127.0.0.1")


def _made_in(module: str, name: str, *bases: type[Exception]) -> Exception:
    kind: type[Exception] = type(name, bases or (Exception,), {"__module__": module})
    return kind("no")


def _caused_by(cause: Exception) -> Exception:
    error = ValueError("no answer")
    error.__cause__ = cause
    return error


_TRANSPORT = type("TransportError", (Exception,), {"__module__": "httpx"})


def _loop_of_causes() -> Exception:
    error = ValueError()
    error.__cause__ = error
    return error


NETWORK = [
    ConnectionResetError(),
    TimeoutError(),
    socket.gaierror(-2, "Name or service not known"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    urllib.error.URLError(ConnectionRefusedError(111, "refused")),
    _made_in("httpx._exceptions", "TransportError"),
    _made_in("httpx._exceptions", "ConnectError", _TRANSPORT),
    _made_in("aiohttp.client_exceptions", "ClientConnectionError"),
    _caused_by(ConnectionResetError()),
    ExceptionGroup("", [ValueError(), ExceptionGroup("", [ConnectionResetError()])]),
    ExceptionGroup("", [_caused_by(urllib.error.URLError(TimeoutError()))]),
]
OWN = [
    ValueError("no"),
    FileNotFoundError(2, "No such file"),
    OSError(errno.ENOSPC, "full"),
    _made_in("other", "TransportError"),
    _caused_by(ValueError()),
    urllib.error.URLError("unknown url type"),
    ExceptionGroup("", [ValueError()]),
    type("NoModule", (Exception,), {"__module__": None})(),
    _loop_of_causes(),
]


def test_errors_of_connections_names_and_timeouts_are_the_networks() -> None:
    assert [error for error in NETWORK if not is_network_failure(error)] == []
    assert [error for error in OWN if is_network_failure(error)] == []
