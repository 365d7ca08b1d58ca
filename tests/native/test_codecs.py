"""Encoders, decoders and columns in C equal their Python twins, and logs byte for byte."""

import asyncio
import contextlib
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskq import TaskQ
from taskq.calls.arguments import ArgumentCodec
from taskq.calls.serialization import FLAT_BYTES_MAX
from taskq.calls.signature import Signature
from taskq.core.folds.lanes import Lane
from taskq.core.kinds import BIRTH, CLAIM, SUCCESS
from taskq.core.parsing import Tag
from taskq.log.decide.claim import claimed
from taskq.log.decide.enqueue import take
from taskq.log.decide.settle import unclaimed
from taskq.log.format.codec import born_records
from taskq.log.format.columns import plain_records, whole_records
from taskq.log.requests import Delivery, EnqueueSpec
from taskq.testing.sandbox import FakeClock, use_clock
from tests.effort import grows, some
from tests.log.simulation import Simulation
from tests.log.world import fixed_ids
from tests.native.conftest import Choose

#: The fixture that chooses a language holds no state of a case, and a busy machine may be slow.
examples = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@contextlib.contextmanager
def held(app: TaskQ) -> Iterator[None]:
    """Keep the storage thread from taking anything, so that all of it comes as a line."""
    stands, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        stands.set()
        goes_on.wait()

    app.store().mailbox.between_batches(hold)
    stands.wait()
    try:
        yield
    finally:
        goes_on.set()


def said(error: BaseException | None) -> list[Any]:
    errors: list[Any] = []
    while error is not None:
        errors.append((type(error).__name__, str(error), error.__suppress_context__))
        error = error.__cause__ or error.__context__
    return errors


def none() -> None: ...
def number(number: int) -> None: ...
def both(a: int, b: str = "b") -> None: ...
def three(a: int, b: list[int], c: Any) -> None: ...
def five(a: int, b: int, c: int, d: int = 4, *, e: int = 5) -> None: ...


FUNCTIONS: Final = (none, number, both, three, five)
values = st.one_of(
    st.none(), st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.binary(max_size=4), st.just("x" * FLAT_BYTES_MAX), st.floats(),
)  # fmt: skip
names = st.sampled_from(["a", "b", "c", "d", "e", "number", "x"])
payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"{}", b'{"number":1}', b'{"a":1,"b":"c"}', b'{"a":1,"b":[2],"c":{}}', b"[1]",
            b'{"*":[1]}',
        ]
    ),
)  # fmt: skip


def codecs(choose: Choose, function: Callable[..., None]) -> tuple[ArgumentCodec, ArgumentCodec]:
    made = []
    for in_c in (False, True):
        choose(in_c)
        made.append(ArgumentCodec(Signature("task", function)))
    return made[0], made[1]


def ended(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - errors are compared
        return said(error)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_are_encoded_alike(function: Callable[..., None], choose: Choose) -> None:
    python, native = codecs(choose, function)
    assert type(native.encode).__name__ == "Encoder"

    @examples
    @given(st.lists(values, max_size=6), st.dictionaries(names, values, max_size=3))
    def check(args: list[Any], kwargs: dict[str, Any]) -> None:
        expected = ended(python.encode, tuple(args), dict(kwargs))
        assert ended(native.encode, tuple(args), dict(kwargs)) == expected

    check()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_payloads_are_decoded_alike(function: Callable[..., None], choose: Choose) -> None:
    python, native = codecs(choose, function)
    assert type(native.decode).__name__ == "Decoder"

    @examples
    @given(payloads)
    def check(payload: bytes) -> None:
        assert ended(native.decode, payload) == ended(python.decode, payload)

    check()


SPEC: Final = EnqueueSpec("mail", "send")
U64: Final = 2**64 - 1
bodies = st.lists(st.binary(max_size=70), max_size=12)
#: lsns for C, and a larger one for Python
lsns = st.one_of(st.integers(0, 2**63), st.just(U64 - 20))
numbers = st.integers(0, 2**32 - 1)


def in_both(choose: Choose, call: Callable[[], Any]) -> tuple[Any, Any]:
    results = []
    for in_c in (False, True):
        choose(in_c)
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - errors are compared
            results.append(said(error))
    return results[0], results[1]


def test_enqueue_records(choose: Choose) -> None:
    @examples
    @given(bodies, lsns, st.integers(0, 2**62))
    def check(payloads: list[bytes], lsn: int, location: int) -> None:
        own = [SPEC.tail[: number % 9] for number in range(len(payloads))]
        tails = own if lsn % 2 else SPEC.tail
        python, in_c = in_both(choose, lambda: born_records(tails, payloads, lsn, location))
        assert in_c == python
        assert len(in_c[0]) == len(payloads)
        assert type(in_c[1]) is array

    check()


def test_records_of_claims_and_successes(choose: Choose) -> None:
    @examples
    @given(st.sampled_from([CLAIM, SUCCESS]), st.data(), st.integers(1, 30), st.booleans())
    def check(kind: int, data: st.DataObject, count: int, has_owner: bool) -> None:
        row = st.lists(st.integers(0, U64), min_size=count, max_size=count)
        attempts = data.draw(st.lists(numbers, min_size=count, max_size=count))
        jobs = data.draw(row)
        last: Any = data.draw(st.integers(0, U64) if has_owner else row)
        python, in_c = in_both(choose, lambda: plain_records(kind, tuple(attempts), jobs, last))
        assert in_c == python
        assert len(in_c) == 32 * count

    check()


def test_records_are_read_up_to_the_first_that_is_not_whole(choose: Choose) -> None:
    @examples
    @given(bodies.filter(bool), lsns, st.data())
    def check(payloads: list[bytes], lsn: int, data: st.DataObject) -> None:
        choose(False)
        before, location = data.draw(st.integers(0, 9)), data.draw(st.integers(100, 2**60))
        records, places, _ = born_records(SPEC.tail, payloads, lsn, location)
        window = bytearray(bytes(before) + b"".join(records))
        jobs, locations = list(range(lsn, lsn + len(records))), list(places)
        match data.draw(st.sampled_from(["whole", "flipped", "cut", "moved", "another"])):
            case "flipped":
                window[data.draw(st.integers(before, len(window) - 1))] ^= 1 << lsn % 8
            case "cut":
                del window[data.draw(st.integers(0, len(window))) :]
            case "moved":
                locations[-1] += data.draw(st.integers(-200, 200))
            case "another":
                jobs[-1] ^= 1
        operands = bytes(window), location - before, locations, jobs
        python, in_c = in_both(choose, lambda: whole_records(*operands))
        assert in_c == python
        assert in_c == records[: len(in_c)]

    check()


def test_a_record_that_is_too_short_or_too_long_is_not_whole(choose: Choose) -> None:
    """Be its CRC right or far beyond the end."""
    short = b"\x0c\0\0\0" + bytes((BIRTH, 5, 0, 0))
    short += zlib.crc32(short, 7).to_bytes(4, "little")
    for size in (2**31 - 1, 2**32 - 1):
        long = size.to_bytes(4, "little") + short[4:8]
        for head in (short, long):
            data = head + bytes(40)
            assert in_both(choose, lambda: whole_records(data, 9, [9], [7])) == ([], [])  # noqa: B023


def running_jobs(jobs: list[int]) -> dict[int, tuple[int, int, int]]:
    return {job: (job + 1_000, 7, 2**63 + 1) for job in jobs}


def test_claims(choose: Choose) -> None:
    lane = Lane(0, SPEC.lane_key, 5)

    @examples
    @given(st.lists(st.integers(1, 2**63), unique=True, max_size=12), lsns)
    def check(jobs: list[int], token: int) -> None:
        def claim() -> Any:
            running = running_jobs([1, 2])
            attempts, lanes = [job % 5 for job in jobs], [lane] * len(jobs)
            records = [b"%d" % job for job in jobs]
            made = claimed(Tag("tag"), 7, 9, token, jobs, attempts, lanes, records, running)
            assert all(type(delivery) is Delivery for delivery in made)
            return made, list(running.items()), [hash(delivery[:5]) for delivery in made]

        python, in_c = in_both(choose, claim)
        assert in_c == python
        assert [delivery.payload_flags for delivery in in_c[0] if len(delivery.record) > 9] == [
            delivery.payload_flags for delivery in python[0] if len(delivery.record) > 9
        ]

    check()


def test_ends_of_claims_are_all_taken_or_none(choose: Choose) -> None:
    lane, owner = Lane(0, SPEC.lane_key, 5), 2**63 + 1

    @examples
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.data())
    def check(jobs: list[int], data: st.DataObject) -> None:
        wrong = data.draw(st.sampled_from([None, "token", "epoch", "owner", "job"]))
        at = data.draw(st.integers(0, len(jobs) - 1))

        def end() -> Any:
            running = running_jobs(list(range(50, 0, -1)))
            deliveries = []
            for number, job in enumerate(jobs):
                delivery = Delivery(Tag("tag"), job, job + 1_000, 7, job % 3, lane, b"record")
                if number == at and wrong in {"token", "epoch"}:
                    changed: Any = {wrong: 3}
                    delivery = delivery._replace(**changed)
                deliveries.append(delivery)
            if wrong == "job":
                running.pop(jobs[at], None)
            given_owner = owner + (wrong == "owner")
            return unclaimed(deliveries, given_owner, running), list(running.items())

        python, in_c = in_both(choose, end)
        assert in_c == python
        is_right = wrong is None and len(set(jobs)) == len(jobs)
        assert (in_c[0] is not None) is is_right
        assert len(in_c[1]) == 50 - (len(jobs) if is_right else wrong == "job")

    check()


def test_lines_are_taken_up_to_what_there_is_room_for(choose: Choose) -> None:
    @examples
    @given(bodies, st.integers(0, 12), st.integers(-1, 1))
    def check(payloads: list[bytes], fitting: int, more: int) -> None:
        room = sum(len(body) + 48 for body in payloads[:fitting]) + more

        def taken() -> Any:
            line = [part for body in payloads for part in (SPEC, body, body)]
            run = take(line, room)
            return run.specs, run.bodies, run.futures, run.size, line

        python, in_c = in_both(choose, taken)
        assert in_c == python
        assert in_c[1] + in_c[4][1::3] == payloads
        assert bool(in_c[1]) is bool(payloads)

    check()


def test_what_is_no_column_of_numbers_or_bytes_is_left_to_python(extension: Any) -> None:
    """It changes nothing then; a wrong number of arguments is refused."""
    running, lane = running_jobs([1]), Lane(0, SPEC.lane_key, 5)
    held = Delivery(Tag("tag"), 1, 1_001, 7, 1, lane, b"record")
    line = [SPEC, b"", None]
    claim = (Tag("tag"), 7, 9, 5, [2], [1], [lane], [b""], running)
    read = (b"", 0, 1, 24, 0, [0], [0])
    for call, args in (
        (extension.born_records, (bytearray(4), [b""], 1, 1)),
        (extension.born_records, ([b""], [b"", b""], 1, 1)),
        (extension.born_records, ([bytearray(4)], [b""], 1, 1)),
        (extension.born_records, (b"", [bytearray(1)], 1, 1)),
        (extension.born_records, (b"", [b""], -1, 1)),
        (extension.born_records, (b"", [b""], 1, 2**64)),
        (extension.born_records, (b"", iter([b""]), 1, 1)),
        (extension.plain_records, (bytes(7), [1], [1], [1])),
        (extension.plain_records, (bytes(8), [2**32], [1], [1])),
        (extension.plain_records, (bytes(8), [1], [-1], [1])),
        (extension.plain_records, (bytes(8), [1], [1], [1.0])),
        (extension.plain_records, (bytes(8), [1], [1], [1, 2])),
        (extension.plain_records, (bytes(8), [1, 1], [1], 1)),
        (extension.plain_records, (bytes(8), [1], [1], -1)),
        (extension.whole_records, (bytearray(9), *read[1:])),
        (extension.whole_records, (b"", -1, *read[2:])),
        (extension.whole_records, (*read[:3], 4, *read[4:])),
        (extension.whole_records, (*read[:5], [0, 1], [0])),
        (extension.whole_records, (*read[:5], [None], [0])),
        (extension.claimed, (list, *claim)),
        (extension.claimed, (memoryview, *claim)),
        (extension.claimed, (1, *claim)),
        (extension.claimed, (Delivery, *claim[:3], -1, *claim[4:])),
        (extension.claimed, (Delivery, *claim[:5], [1, 2], *claim[6:])),
        (extension.claimed, (Delivery, *claim[:8], [])),
        (extension.unclaimed, (iter([held]), 2**63 + 1, running)),
        (extension.unclaimed, ([held, (1, 2)], 2**63 + 1, running)),
        (extension.unclaimed, ([held, held], 2**63 + 1, running)),
        (extension.unclaimed, ([held], 5, running)),
        (extension.take, (line[:2], 1, 1)),
        (extension.take, (line, 1, -1)),
        (extension.take, (tuple(line), 1, 1)),
        (extension.take, ([SPEC, "", None], 1, 1)),
    ):  # fmt: skip
        try:
            assert call(*args) is None, (call, args)
        except TypeError as error:
            assert "has no len" in str(error), (call, args)  # noqa: PT017 - of an iterator alone
        with pytest.raises(TypeError):
            call(*args, 1)
    assert running == running_jobs([1])
    assert line == [SPEC, b"", None]


async def written(path: Path) -> dict[str, bytes]:
    """Write jobs of several kinds, alone and as a crowd; returns the segments."""
    app = TaskQ(path, durability="os")
    use_clock(app, FakeClock())

    @app.task(name="send")
    async def send(to: str, count: int = 1) -> None: ...

    @app.task(name="keyed", key=lambda number: f"{number}", priority=8)
    async def keyed(number: int) -> None: ...

    async with app:
        await send.enqueue("alone")
        for crowd in range(4):
            with held(app):
                calls = [send.enqueue(f"{crowd} {n}", count=n) for n in range(30)]
                calls += [keyed.enqueue(n // 2) for n in range(4)]
                calls += [send.enqueue("ü", count=crowd), send.enqueue(to="by name")]
                tasks = [asyncio.create_task(call) for call in calls]
                await asyncio.sleep(0)
                tasks[3].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return {file.name: file.read_bytes() for file in sorted((path / "log").glob("*.log"))}


@pytest.mark.usefixtures("own_settings")
def test_logs_are_equal(choose: Choose, tmp_path: Path) -> None:
    logs = {}
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            logs[in_c] = asyncio.run(written(tmp_path / str(in_c)))
    assert min(map(len, logs[False].values())) > 120 * 60
    assert logs[True] == logs[False]


@grows
@pytest.mark.parametrize("seed", range(some(6, 300)))
def test_logs_of_simulations_are_equal(seed: int, choose: Choose) -> None:
    """Through crashes and losses of power, with faults of the disk and steps of the clock."""
    logs = {}
    for in_c in (False, True):
        with fixed_ids():
            choose(in_c)
            simulation = Simulation(seed, steps_of_clock=seed % 2 == 1, faults=seed % 3 == 1)
            simulation.run(80)
            machine = simulation.world.machine
            logs[in_c] = {path: machine.content(path) for path in simulation.world.segments()}
    assert sum(map(len, logs[False].values())) > 1_000
    assert logs[True] == logs[False]
