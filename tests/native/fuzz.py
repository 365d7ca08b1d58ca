"""Give the functions in C what nobody should: nothing crashes, and what is whole reads as written.

Run: ``python -m tests.native.fuzz [COUNT] [SEED]``, best with sanitizers: see tests/README.md. A
case is a window of frames' records with bytes changed, cut or moved, or the operands of a function
with some of them replaced.
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from taskq import _native as native
from taskq.core.folds.lanes import Lane
from taskq.core.kinds import BIRTH
from taskq.core.parsing import Tag
from taskq.log.format import codec
from taskq.log.requests import Delivery, EnqueueSpec

COUNT: Final = 10_000_000
SPEC: Final = EnqueueSpec("mail", "send")
LANE: Final = Lane(0, SPEC.lane_key, 5)
#: Windows that are read again and again, each time damaged otherwise.
WINDOWS: Final = 64
#: Errors of a damaged call.
REFUSED: Final = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RuntimeError)
STRANGE: Final[tuple[Any, ...]] = (
    None, -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 1.5, "", "text", b"", b"\0" * 7,
    b"x" * 8, bytearray(9), [], [None], [1], [-1, 2**64], (), (1,), (b"",), {}, {1: (1, 2, 3)},
    object(), list, tuple, Delivery, SPEC, LANE, range(3), iter([1]), memoryview(b"abcd"),
)  # fmt: skip


def none(*_: Any, **__: Any) -> None: ...


class Cases:
    """Cases of one seed."""

    def __init__(self, seed: int) -> None:
        assert native.is_on, "there is no extension: python -m taskq._native.build"
        self.chance = random.Random(seed)
        self.extension: Any = native.plain
        self.windows = [self._window() for _ in range(WINDOWS)]

    def _window(self) -> tuple[bytes, list[int], list[int], list[bytes]]:
        chance = self.chance
        lsn, location = chance.randrange(1, 2**40), chance.randrange(1, 2**40)
        bodies = [chance.randbytes(chance.randrange(60)) for _ in range(chance.randrange(1, 5))]
        records, _, _ = self.extension.born_records(SPEC.tail, bodies, lsn, location)
        places = [location]
        for record in records[:-1]:
            places.append(places[-1] + len(record))
        jobs = list(range(lsn, lsn + len(records)))
        return b"".join(records), places, jobs, records

    def read(self) -> None:
        chance = self.chance
        data, places, jobs, records = self.windows[chance.randrange(WINDOWS)]
        first, places = places[0], places[:]
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                change = bytes((data[at] ^ chance.randrange(1, 256),))
                data = data[:at] + change + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                number = chance.randrange(len(places))
                at = places[number] - first
                places[number] = max(places[number] + chance.choice((-9, -1, 1, 9, 2**40)), 0)
            case 3:  # a length that leads astray
                number = chance.randrange(len(places))
                at = places[number] - first
                size = chance.choice((0, 3, 8, 23, 24, 2**31, 2**32 - 1)).to_bytes(4, "little")
                data = data[:at] + size + data[at + 4 :]
        read = self.extension.whole_records(
            data, first, int(BIRTH), codec.BORN.size, codec.CRC_OF_WHOLE, places, jobs
        )
        whole = sum(place - first + len(record) <= at for place, record in zip(places, records))  # noqa: B905
        assert read[:whole] == records[:whole], (data, places, jobs)
        assert len(read) <= whole or records[: len(read)] == read, (data, places, jobs)

    def ask(self) -> None:
        chance, extension = self.chance, self.extension
        running: dict[Any, Any] = {1: (2, 3, 4)}
        held = Delivery(Tag("tag"), 1, 2, 3, 1, LANE, b"record")
        line = [SPEC, b"body", none] * chance.randrange(3)
        claim = [Delivery, "t", 3, 4, 2, [1, 2], [1, 1], [LANE] * 2, [b"a"] * 2, running]
        calls: tuple[tuple[Callable[..., Any], list[Any]], ...] = (
            (extension.born_records, [SPEC.tail, [b"a", b"b"], 5, 6]),
            (extension.plain_records, [bytes(8), [1, 2], [3, 4], [5, 6]]),
            (extension.whole_records, [bytes(40), 5, 1, 24, 7, [5, 6], [1, 2]]),
            (extension.claimed, claim),
            (extension.unclaimed, [[held], 4, running]),
            (extension.take, [line, 100, 48]),
            (extension.new_handle, [Delivery, none, none, "t", 5]),
            (extension.answer_all, [iter([(none, 5)])]),
            (extension.submit, [none, none, SPEC, 5, (1,), {}]),
            (extension.run_jobs, [none, 1.0, None, (1,) * 16]),
            (extension.Encoder, [("a",), none, none, none, none, 5]),
            (extension.Decoder, [none, none]),
        )  # fmt: skip
        call, operands = chance.choice(calls)
        for _ in range(chance.randrange(3)):
            self._replace(operands)
        try:
            made = call(*operands)
            if callable(made):
                made(chance.choice(STRANGE), *chance.choices(STRANGE, k=chance.randrange(2)))
        except REFUSED:
            return

    def _replace(self, operands: list[Any]) -> None:
        number = self.chance.randrange(len(operands))
        column = operands[number]
        if isinstance(column, list) and column and self.chance.random() < 0.5:
            column[self.chance.randrange(len(column))] = self.chance.choice(STRANGE)
        else:
            operands[number] = self.chance.choice(STRANGE)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    began, cases = time.monotonic(), Cases(seed)
    for number in range(count):
        (cases.read if number % 2 else cases.ask)()
        if number % 1_000_000 == 999_999:
            print(f"{number + 1:,} cases, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{count:,} cases, {time.monotonic() - began:.0f} s: nothing crashed")


if __name__ == "__main__":
    main()
