"""Endlessly nested JSON is refused where it is written, and harms no reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from taskq import TaskLog, TaskQ
from taskq.cli.main import main
from taskq.core.errors import FormatError, InvalidCall, JobFailed
from taskq.core.parsing import DEPTH_MAX, VALUE_DEPTH_MAX, parse_json
from taskq.log.config import LogConfig
from taskq.log.machine.owners import decode_description, read_servings
from taskq.log.read.reader import LogReader
from taskq.log.requests import EnqueueSpec
from taskq.log.store.store import open_store
from taskq.schedules import _facts

_MANY: Final = 100_000
_DEEP: Final = b"[" * _MANY + b"]" * _MANY
_DEEP_OBJECTS: Final = b'{"a":' * _MANY + b"1" + b"}" * _MANY


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("data", [_DEEP, _DEEP_OBJECTS, _DEEP.decode(), b"[" * _MANY])
def test_whatever_is_nested_too_deeply_is_a_value_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"nested more than 200 deep|Expecting value"):
        parse_json(data)


@pytest.mark.parametrize("depth", [1, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 500, 900])
def test_the_limit_is_the_depth_and_not_the_number_of_brackets(depth: int) -> None:
    text = json.dumps([_nested(depth - 1)] * 50 if depth > 1 else [])
    if depth <= DEPTH_MAX:
        assert parse_json(text) == json.loads(text)
    else:
        with pytest.raises(ValueError, match="nested more than 200 deep"):
            parse_json(text)
    assert parse_json(json.dumps([[1], {"[": "{"}] * 900))


@pytest.mark.parametrize("depth", [VALUE_DEPTH_MAX + 1, 300, 100_000])
async def test_arguments_that_no_worker_could_read_are_refused_at_the_call(
    depth: int, tmp_path: Path
) -> None:
    app = TaskQ(tmp_path)

    @app.task(name="deep")
    def deep(value: Any) -> None:
        del value

    async with app:
        job = await deep.enqueue(_nested(VALUE_DEPTH_MAX))
        with pytest.raises(InvalidCall, match=r"deep: .*nested more than 160 deep"):
            await deep.enqueue(_nested(depth))
        with pytest.raises(InvalidCall, match=r"deep: .*nested more than 160 deep"):
            await deep.options(delay=5).enqueue(value=_nested(depth))
        assert (await app.stats()).queues[0].ready == 1
        async with app.worker():
            await job.result(timeout=20)


async def test_a_payload_that_is_nested_too_deeply_dies_at_its_first_attempt(
    tmp_path: Path,
) -> None:
    app = TaskQ(tmp_path)

    @app.task(name="deep")
    def deep(value: Any = None) -> None:
        del value

    store = open_store(str(tmp_path), LogConfig())
    spec = EnqueueSpec("default", "deep", 5, 5)
    lsn = store.thread_port.enqueue(spec, b'{"value":' + _DEEP + b"}").result(20)
    store.close()
    assert isinstance(lsn, int)
    with LogReader.open(str(tmp_path)) as reader:
        bad = f"{reader.tag}-{lsn}"
    async with app:
        good = await deep.enqueue(1)
        async with app.worker():
            await good.result(timeout=20)
            with pytest.raises(JobFailed, match="no JSON"):
                await app.job(bad).result(timeout=20)
    with LogReader.open(str(tmp_path)) as reader:
        answer = reader.job(lsn)
        assert answer is not None
        assert answer.attempt == 1


@pytest.mark.parametrize("depth", [VALUE_DEPTH_MAX + 1, 100_000])
async def test_a_result_that_nobody_could_read_fails_the_job(depth: int, tmp_path: Path) -> None:
    app = TaskQ(tmp_path)

    @app.task(name="deep", retry=1)
    def deep() -> Any:
        return _nested(depth)

    async with app, app.worker():
        job = await deep.enqueue()
        with pytest.raises(JobFailed, match="nested more than 160 deep"):
            await job.result(timeout=20)


@pytest.mark.parametrize("deep", [_DEEP, _DEEP_OBJECTS])
def test_commands_print_what_they_can_of_a_deep_payload(deep: bytes, tmp_path: Path) -> None:
    async def write() -> str:
        async with TaskLog.open(tmp_path) as log:
            job: str = await log.put(deep)
            await log.ack((await log.claim(1))[0], deep)
            return job

    job = asyncio.run(write())
    for command in (
        ["show", job], ["show", job, "--json"], ["tail"], ["tail", "--json"], ["export"],
        ["export", "--records"], ["ls"], ["ls", "--json"], ["why", job], ["timeline", job],
    ):  # fmt: skip
        result = CliRunner().invoke(main, [*command, "-d", str(tmp_path)])
        assert result.exit_code == 0, (command, result.output[-500:])
        assert result.output
    put = ["put", "-t", "mail.send", "-", "-d", str(tmp_path)]
    assert CliRunner().invoke(main, put, input=deep).exit_code in (0, 1, 2)


def _described(deep: bytes, _: Path) -> bool:
    return bool(decode_description(deep)["pid"] == 0)


def _served(deep: bytes, path: Path) -> bool:
    (path / f"{7:016x}.serves").write_bytes(deep)
    return read_servings(path, 7) == ()


def _scheduled(deep: bytes, _: Path) -> bool:
    return _facts(deep) == {}


def _identity(deep: bytes, path: Path) -> bool:
    (path / "taskq.json").write_bytes(deep)
    with pytest.raises(FormatError, match="not readable"):
        LogReader.open(str(path))
    return True


@pytest.mark.parametrize("deep", [_DEEP[: 2 * 900], _DEEP, _DEEP_OBJECTS, _DEEP[:_MANY]])
@pytest.mark.parametrize("reads", [_described, _served, _scheduled, _identity])
def test_who_reads_a_small_file_takes_a_deep_one_for_an_unreadable_one(
    reads: Callable[[bytes, Path], bool], deep: bytes, tmp_path: Path
) -> None:
    assert reads(deep, tmp_path)
