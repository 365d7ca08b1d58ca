"""Named readers: each record until it is handled, despite crashes; one at a time; moves."""

import asyncio
import contextlib
import gc
import os
from pathlib import Path

import pytest

from taskq import Put, Stream, TaskLog, errors
from taskq.log.config import SEGMENT_BYTES_MIN
from taskq.log.machine.disk import LocalDisk
from taskq.log.read.readers import NamedReader, ReaderPosition, read_position
from tests.effort import within
from tests.processes.harness import removed


class Failed(Exception):
    """A handler that raises."""


async def put(log: TaskLog, count: int, size: int = 10) -> None:
    await log.put_many([Put(payload=bytes(size)) for _ in range(count)])


async def lsns(stream: Stream, count: int | None = None) -> list[int]:
    numbers: list[int] = []
    async with stream:
        async for record in stream:
            numbers.append(record.lsn)
            if len(numbers) == count:
                await stream.commit()
                break
    return numbers


def found_position(log: TaskLog) -> ReaderPosition:
    store = log._connection.store()
    position = read_position(LocalDisk(), store.path, store.identity, "billing")
    assert position is not None
    return position


def segments(log: TaskLog) -> list[Path]:
    return sorted((log.data_dir / "log").glob("*.log"))


# -- at least once ---------------------------------------------------------------------------------


async def test_a_stream_left_by_an_error_keeps_no_name(log: TaskLog) -> None:
    await put(log, 3)
    gc.disable()
    try:
        for turn in range(3):
            with contextlib.suppress(Failed):
                async for _ in log.stream(reader="billing"):
                    raise Failed
            with contextlib.suppress(TimeoutError):
                # It has read all at the first time, and waits for more.
                limit = asyncio.timeout(0.05 if turn else None)
                async with limit, log.stream(reader="other") as stream:
                    async for record in stream:
                        if record.lsn == 3:
                            limit.reschedule(0)
            (billing, other) = await log.readers()
            assert not billing.alive
            assert not other.alive
            assert (billing.lsn, other.lsn) == (1, 4)
    finally:
        gc.enable()


async def test_a_position_is_saved_while_the_stream_waits(log: TaskLog) -> None:
    await put(log, 5)
    stream = log.stream(reader="billing")
    for _ in range(5):
        await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    async with within():
        while (await log.readers())[0].lsn < 6:  # noqa: ASYNC110 - nobody tells of a save
            await asyncio.sleep(0.001)
    await put(log, 1)
    assert (await waiting).lsn == 6
    await stream.aclose()


@pytest.mark.parametrize("limit", ["records", "seconds"])
async def test_a_position_is_saved_often_enough_and_no_oftener(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """So that a kill repeats a thousand records, or 50 ms, at most."""
    records, seconds = (100, 1e9) if limit == "records" else (10**9, 0.0)
    monkeypatch.setattr("taskq.reading.stream.COMMIT_RECORDS_MAX", records)
    monkeypatch.setattr("taskq.reading.stream.COMMIT_SECONDS_MAX", seconds)
    saves: list[int] = []
    save = NamedReader.save

    def count(reader: NamedReader, position: ReaderPosition) -> None:
        saves.append(position.lsn)
        save(reader, position)

    monkeypatch.setattr(NamedReader, "save", count)
    await put(log, 1_000)
    stream = log.stream(reader="billing")
    for number in range(1, 501):
        assert (await anext(stream)).lsn == number
        # The newest record is in hand; all before it are handled.
        position = found_position(log)
        assert position.lsn >= number - (records if limit == "records" else 0)
        assert position.lsn <= number
    assert len(saves) <= (7 if limit == "records" else 501)
    await stream.aclose()
    assert found_position(log).lsn == 500


async def test_an_unsaved_position_ends_the_stream(
    log: TaskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(log, 5)
    stream = log.stream(reader="billing")
    await anext(stream)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(NamedReader, "save", full)
        with pytest.raises(
            errors.LogError, match=r"reader 'billing' could not be saved .No space left"
        ):
            await lsns(stream)
    assert await lsns(log.stream(reader="billing", follow=False)) == [1, 2, 3, 4, 5]


async def test_the_lag_counts_records_and_not_lsns_left_out_by_a_crash(tmp_path: Path) -> None:
    async with TaskLog.open(tmp_path / "log") as log:
        await put(log, 7)
        await lsns(log.stream(reader="billing"), 2)
    os.truncate(tmp_path / "log" / "write.lock", 0)  # as after a reboot
    async with TaskLog.open(tmp_path / "log") as log:
        await put(log, 3)
        (view,) = await log.readers()
        assert (view.lsn, view.lag_records) == (3, 8)
        result = await lsns(log.stream(reader="billing", follow=False))
    assert result[:5] == [3, 4, 5, 6, 7]
    assert result[5] > 2**20


# -- the log changed -------------------------------------------------------------------------------


async def test_a_reader_whose_next_record_was_removed_gets_an_error(log: TaskLog) -> None:
    for _ in range(40):
        await put(log, 5, 1_000)
    await lsns(log.stream(reader="billing"), 10)
    await log.close()
    segments(log)[0].unlink()
    oldest = int(segments(log)[0].stem)
    async with log:
        message = f"reader 'billing' was to go on at lsn 11, .* before lsn {oldest}: .*seek"
        with pytest.raises(errors.ReaderFellBehind, match=message) as caught:
            await lsns(log.stream(reader="billing"))
        behind = caught.value
        assert (behind.reader, behind.lsn, behind.oldest_lsn) == ("billing", 11, oldest)
        (view,) = await log.readers()
        assert view.problem == str(behind)
        assert (view.lsn, view.lag_records) == (11, 201 - oldest)
        await log.seek("billing", lsn=oldest)
        assert await lsns(log.stream(reader="billing"), 2) == [oldest, oldest + 1]
        with pytest.raises(errors.ReaderFellBehind):
            await log.seek("billing", lsn=oldest - 1)
        with pytest.raises(errors.ReaderFellBehind, match=f"everything before lsn {oldest}"):
            await anext(log.stream(from_lsn=1))


async def test_a_stream_that_is_overtaken_while_it_reads_gets_an_error(log: TaskLog) -> None:
    for _ in range(40):
        await put(log, 5, 1_000)
    first, second, third = (int(path.stem) for path in segments(log)[:3])
    stream = log.stream(reader="billing")
    while (await anext(stream)).lsn < second - 1:
        pass
    for path in segments(log)[:2]:
        removed(path)
    with pytest.raises(errors.ReaderFellBehind) as caught:
        await anext(stream)
    assert (caught.value.lsn, caught.value.oldest_lsn) == (second, third)
    await stream.aclose()
    assert first == 1


@pytest.mark.parametrize("how", ["one after the other", "with a loss of power between"])
async def test_a_reader_goes_on_after_removal_of_records_it_read(tmp_path: Path, how: str) -> None:
    log = TaskLog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES_MIN)
    async with log:
        for _ in range(13):
            await put(log, 5, 1_000)
        read = await lsns(log.stream(reader="billing", follow=False))
    if how != "one after the other":
        (log.data_dir / "write.lock").unlink()
    async with log:
        await put(log, 5, 1_000)
    while len(segments(log)) > 1:
        segments(log)[0].unlink()
    async with log:
        result = await lsns(log.stream(reader="billing", follow=False))
    assert result == [int(segments(log)[0].stem) + n for n in range(5)]
    assert read == list(range(1, 66))


async def test_a_log_that_was_cut_under_a_reader_is_an_error_with_a_name(tmp_path: Path) -> None:
    """A loss of power took back what only the system's memory had (durability "os")."""
    path = tmp_path / "log"
    async with TaskLog.open(path, durability="os") as log:
        await put(log, 5)
        await put(log, 5)
        await lsns(log.stream(reader="billing", follow=False))
    (segment,) = segments(log)
    os.truncate(segment, segment.stat().st_size - 100)
    os.truncate(path / "write.lock", 0)
    async with TaskLog.open(path, durability="os") as log:
        await put(log, 5)
        message = "reader 'billing' had come to lsn 11, but .* is not at .*: the log was cut"
        with pytest.raises(errors.ReaderMismatch, match=message) as caught:
            await lsns(log.stream(reader="billing"))
        assert (caught.value.reader, caught.value.lsn) == ("billing", 11)
        assert (await log.readers())[0].problem == str(caught.value)
        await log.seek("billing", "end")
        assert await lsns(log.stream(reader="billing", follow=False)) == []


async def test_a_log_that_was_put_back_from_a_copy_is_an_error_with_a_name(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with TaskLog.open(path) as log:
        await put(log, 2)
        (segment,) = segments(log)
        copy = segment.read_bytes()
        await put(log, 2)
        await lsns(log.stream(reader="billing", follow=False))
    segment.write_bytes(copy)
    async with TaskLog.open(path) as log:
        await put(log, 2, 200)
        with pytest.raises(errors.ReaderMismatch):
            await lsns(log.stream(reader="billing"))


async def test_a_reader_finds_its_place_in_frames_that_were_moved(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with TaskLog.open(path, durability="os") as log:
        for _ in range(6):
            await put(log, 2)
        await lsns(log.stream(reader="billing"), 9)
    (path / "failed").write_text('{"segment": 1, "durable_lsn": 5}')
    async with TaskLog.open(path, durability="os") as log:
        assert len(segments(log)) > 1
        await put(log, 1)
        result = await lsns(log.stream(reader="billing", follow=False))
    assert result[:3] == [10, 11, 12]
    assert len(result) == 4


async def test_damage_stops_a_stream_or_is_passed_over_as_it_was_asked_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    async with TaskLog.open(path) as log:
        for _ in range(5):
            await put(log, 2, 500)
    (segment,) = segments(log)
    data = bytearray(segment.read_bytes())
    for place in (1_500, 4_000):  # in a body, and all over a header
        data[place : place + 300] = bytes(300)
    segment.write_bytes(data)
    async with TaskLog.open(path) as log:
        stream = log.stream(reader="billing", follow=False)
        with pytest.raises(
            errors.LogDamaged, match=r"\d+ bytes from offset \d+ on do not read back .lsn"
        ):
            await lsns(stream)
        with pytest.raises(errors.LogDamaged):
            await lsns(log.stream(reader="billing", follow=False))
        result = await lsns(log.stream(reader="billing", follow=False, on_damage="skip"))
        whole = await lsns(log.stream(follow=False, on_damage="skip"))
    assert set(whole) < set(range(1, 11))
    assert whole[-1] == 10
    assert sorted({*result, 1, 2}) == sorted({*whole, 1, 2})
    assert "passed over" in caplog.text
