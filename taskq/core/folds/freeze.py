"""Folds as columns of numbers, and back: the content of a snapshot."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Final, Protocol, TypeAlias, TypeVar

from taskq.core.folds.agenda import Agenda
from taskq.core.folds.claims import GONE
from taskq.core.folds.dedup import Dedup, _Page
from taskq.core.folds.jobtable import CHUNK, Chunk, JobTable
from taskq.core.folds.lanes import (
    BLOCKED_BY_CONCURRENCY,
    BLOCKED_BY_RATE,
    Lane,
    pack_group,
    unpack_group,
)
from taskq.core.folds.moments import Returned, SortedBlocks
from taskq.core.folds.steps import Signal, Steps
from taskq.core.model import PRIORITY_MAX
from taskq.core.rates import Times
from taskq.core.schedules import ScheduleState
from taskq.core.sources import SourceRecord, SourceState

T = TypeVar("T")

#: Frozen attributes of a lane besides its key and its entries.
_LANE_NUMBERS: Final = (
    "priority", "blocked", "entries", "left", "ready", "scheduled", "running", "succeeded", "dead",
    "cancelled", "expired", "_head", "_swept",
)  # fmt: skip
_DEDUP_NUMBERS: Final = ("shift_ns", "size", "_swept", "_taken")


class Frozen:
    """Columns of numbers, taken in the order in which they were put.

    The whole state of a fold is frozen, to the last counter, so a fold resumed from the columns
    equals a fold that never stopped. Derived values are left out and computed again: indexes by
    name, the set of lanes with jobs, positions of the last search.

    Freezing copies whole arrays, since it happens between two batches: a million waiting jobs take
    some 20 ms. A change of the columns needs a new number in ``log.snapshot``.

    Attributes:
        columns: type code ("B", "I", "Q" or "q") and the arrays that make up each column.
    """

    def __init__(self) -> None:
        self.columns: deque[tuple[str, list[array[int]]]] = deque()

    def put(self, code: str, values: Iterable[int]) -> None:
        """Add a column of numbers.

        Raises:
            OverflowError: a number does not fit the type.
        """
        self.columns.append((code, [array(code, values)]))

    def put_arrays(self, code: str, arrays: Sequence[array[int]]) -> None:
        """Add arrays of one type: their lengths, then all their numbers. The caller copies them."""
        self.put("I", map(len, arrays))
        self.columns.append((code, list(arrays)))

    def put_names(self, names: Sequence[bytes]) -> None:
        self.put("I", map(len, names))
        self.put("B", b"".join(names))


#: Errors of thawing columns that do not match.
MISFITS: Final = (ValueError, IndexError, StopIteration)


class Source(Protocol):
    """Columns to read in order; a mismatch raises a ValueError."""

    def take(self, code: str) -> array[int]: ...
    def take_arrays(self, code: str) -> list[array[int]]: ...
    def take_locations(self) -> list[array[int]]: ...
    @property
    def left(self) -> int: ...


_Put: TypeAlias = Callable[[Frozen, "Agenda"], None]
_Take: TypeAlias = Callable[["Source", "Agenda"], None]


def freeze_agenda(agenda: Agenda) -> Frozen:
    frozen = Frozen()
    for put, _ in _PARTS:
        put(frozen, agenda)
    if agenda.steps:
        _put_steps(frozen, agenda.steps)
    return frozen


def thaw_agenda(source: Source) -> Agenda:
    """Return the agenda that was frozen into these columns.

    Raises:
        ValueError: the columns are of another kind.
    """
    agenda = Agenda()
    for _, take in _PARTS:
        take(source, agenda)
    _check(agenda)
    if source.left:
        _take_steps(source, agenda.steps)
    return agenda


def _put_tables(frozen: Frozen, agenda: Agenda) -> None:
    counts = agenda._scheduled, agenda._expiring, agenda._left
    frozen.put("q", (agenda.floor_lsn, agenda.ages.moment, *counts))
    _put_table(frozen, agenda.table)
    _put_table(frozen, agenda.dead)


def _take_tables(source: Source, agenda: Agenda) -> None:
    agenda.floor_lsn, agenda.ages.moment, *counts = source.take("q")
    agenda._scheduled, agenda._expiring, agenda._left = counts
    _take_table(source, agenda.table)
    _take_table(source, agenda.dead)


def _put_paused(frozen: Frozen, agenda: Agenda) -> None:
    paused = sorted(agenda.queues.paused)
    frozen.put_names([queue.encode("utf-8", "surrogatepass") for queue in paused])


def _take_paused(source: Source, agenda: Agenda) -> None:
    names = _take_names(source)
    agenda.queues.paused.update(name.decode("utf-8", "surrogatepass") for name in names)


def _put_running(frozen: Frozen, agenda: Agenda) -> None:
    claims = ((job, *claim) for job, claim in agenda.running.items())
    frozen.put("Q", chain.from_iterable(claims))


def _take_running(source: Source, agenda: Agenda) -> None:
    claims = source.take("Q")
    columns = (claims[at::4] for at in range(4))
    agenda.running = {
        job: (token, epoch, owner) for job, token, epoch, owner in zip(*columns, strict=True)
    }


def _put_ages(frozen: Frozen, agenda: Agenda) -> None:
    frozen.put("Q", agenda.ages._lsns)
    frozen.put("Q", agenda.ages._moments)


def _take_ages(source: Source, agenda: Agenda) -> None:
    ages = agenda.ages
    ages._lsns, ages._moments = source.take("Q"), source.take("Q")
    if len(ages._lsns) != len(ages._moments):
        raise ValueError(f"{len(ages._lsns)} frames have {len(ages._moments)} times")


def _put_held(frozen: Frozen, agenda: Agenda) -> None:
    frozen.put("Q", agenda.flows.held.keys())
    frozen.put("Q", agenda.flows.held.values())


def _take_held(source: Source, agenda: Agenda) -> None:
    agenda.flows.thaw(source.take("Q"), source.take("Q"))


def _check(agenda: Agenda) -> None:
    known = {lane.number for lane in agenda.lanes if lane is not GONE}
    for chunk in (*agenda.table._chunks, *agenda.dead._chunks):
        _check_lanes(chunk, known)
    _count_dead(agenda)


def _count_dead(agenda: Agenda) -> None:
    """Recount the dead letters of each lane: older versions sometimes froze too high a count."""
    for lane in agenda.lanes:
        lane.dead = 0
    for chunk in agenda.dead._chunks:
        for number, count in Counter(compress(chunk.lanes, chunk.metas)).items():
            agenda.lanes[number].dead += count


def _put_lanes(frozen: Frozen, agenda: Agenda) -> None:
    lanes = agenda.lanes
    frozen.put_names([lane.key for lane in lanes])
    numbers = [getattr(lane, name) for lane in lanes for name in _LANE_NUMBERS]
    frozen.put("q", numbers)
    frozen.put("I", [len(lane._blocks) for lane in lanes])
    frozen.put_arrays("Q", [block[:] for lane in lanes for block in lane._blocks])
    _put_blocks(frozen, [lane._back for lane in lanes])


def _take_lanes(source: Source, agenda: Agenda) -> None:
    keys = _take_names(source)
    numbers = iter(source.take("q"))
    counts = source.take("I")
    blocks = iter(source.take_arrays("Q"))
    backs = _take_blocks(source)
    lanes: list[Lane] = []
    for key, count, back in zip(keys, counts, backs, strict=True):
        if len(key) < 2 or len(key) < 2 + key[0] + key[1]:  # noqa: PLR2004 - both lengths
            raise ValueError(f"{key!r} names no lane")
        lane = Lane(len(lanes), key, 0)
        for name, value in zip(_LANE_NUMBERS, _some(numbers, len(_LANE_NUMBERS)), strict=True):
            setattr(lane, name, value)
        lane.blocked &= ~(BLOCKED_BY_CONCURRENCY | BLOCKED_BY_RATE)  # claimers set these bits again
        if not 0 <= lane.priority <= PRIORITY_MAX:
            raise ValueError(f"a lane has priority {lane.priority}")
        lane._blocks.extend(_some(blocks, count))
        if back.size:
            lane._back = Returned.of(back)
        lanes.append(GONE if key == GONE.key else lane)
    agenda.queues.thaw(lanes)


def _put_schedules(frozen: Frozen, agenda: Agenda) -> None:
    schedules = agenda.schedules
    names = sorted(schedules)
    states = [schedules[name] for name in names]
    frozen.put_names([name.encode("utf-8", "surrogatepass") for name in names])
    frozen.put("q", [state.last_ns for state in states])
    frozen.put("q", [state.done_ns for state in states])
    frozen.put("B", [state.is_paused for state in states])
    frozen.put_names([state.rule for state in states])
    frozen.put_names([state.details for state in states])


def _take_schedules(source: Source, agenda: Agenda) -> None:
    names = _take_names(source)
    last, done, paused = source.take("q"), source.take("q"), source.take("B")
    rules, details = _take_names(source), _take_names(source)
    states = map(ScheduleState, last, done, map(bool, paused), rules, details)
    if not len(names) == len(last) == len(done) == len(paused) == len(rules) == len(details):
        raise ValueError(f"{len(names)} schedules have {len(last)} states")
    for name, state in zip(names, states, strict=True):
        agenda.schedules[name.decode("utf-8", "surrogatepass")] = state


def _put_sources(frozen: Frozen, agenda: Agenda) -> None:
    sources = agenda.sources
    names = sorted(sources)
    frozen.put_names([name.encode("utf-8", "surrogatepass") for name in names])
    frozen.put_names([sources[name].position for name in names])
    frozen.put("q", [sources[name].moved_ns for name in names])


def _take_sources(source: Source, agenda: Agenda) -> None:
    names, positions, moved = _take_names(source), _take_names(source), source.take("q")
    for name, position, moved_ns in zip(names, positions, moved, strict=True):
        agenda.sources[name.decode("utf-8", "surrogatepass")] = SourceState(position, moved_ns)


def _put_controls(frozen: Frozen, agenda: Agenda) -> None:
    controls = sorted(agenda.controls.items())
    frozen.put_names([name.encode("utf-8", "surrogatepass") for name, _ in controls])
    frozen.put_names([state.position for _, state in controls])
    frozen.put("q", [state.moved_ns for _, state in controls])


def _take_controls(source: Source, agenda: Agenda) -> None:
    names, values, moved = _take_names(source), _take_names(source), source.take("q")
    for name, value, moved_ns in zip(names, values, moved, strict=True):
        state = SourceState(value, moved_ns)
        agenda.apply_steered(SourceRecord(name.decode("utf-8", "surrogatepass"), state))


def _put_rated(frozen: Frozen, agenda: Agenda) -> None:
    rows = list(agenda.groups.rows(agenda.ages.moment))
    frozen.put_names([pack_group(key) for key, _ in rows])
    frozen.put("q", chain.from_iterable((times.most, times.window_ns) for _, times in rows))
    pairs = [times.pairs() for _, times in rows]
    frozen.put_arrays("q", [array("q", (moment for moment, _ in some)) for some in pairs])
    frozen.put_arrays("I", [array("I", (count for _, count in some)) for some in pairs])


def _take_rated(source: Source, agenda: Agenda) -> None:
    names, numbers = _take_names(source), source.take("q")
    columns = names, numbers[::2], numbers[1::2], source.take_arrays("q"), source.take_arrays("I")
    for name, most, window_ns, moments, counts in zip(*columns, strict=True):
        times = Times()
        times.replace(zip(moments, counts, strict=True), most, window_ns)
        agenda.groups.restore(unpack_group(name), times, agenda.ages.moment)


def _put_table(frozen: Frozen, table: JobTable) -> None:
    frozen.put("Q", (table._old, table.live))
    chunks = table._chunks
    frozen.put("I", [chunk.live for chunk in chunks])
    frozen.put_arrays("Q", [chunk.ids[: chunk.used] for chunk in chunks])
    frozen.put_arrays("Q", [chunk.locations[: chunk.used] for chunk in chunks])
    frozen.put_arrays("I", [chunk.lanes[: chunk.used] for chunk in chunks])
    frozen.put_arrays("I", [chunk.metas[: chunk.used] for chunk in chunks])


def _take_table(source: Source, table: JobTable) -> None:
    table._old, table.live = source.take("Q")
    lives = source.take("I")
    ids, locations = source.take_arrays("Q"), source.take_locations()
    lanes, metas = source.take_arrays("I"), source.take_arrays("I")
    for live, *columns in zip(lives, ids, locations, lanes, metas, strict=True):
        chunk = Chunk(0)
        chunk.ids, chunk.locations, chunk.lanes, chunk.metas = columns
        chunk.used = len(chunk.ids)
        chunk.live = live
        if not chunk.used or any(len(column) != chunk.used for column in columns):
            raise ValueError(f"a chunk has columns of {list(map(len, columns))} numbers")
        table._chunks.append(chunk)
        table._firsts.append(chunk.ids[0])
    if sum(lives) != table.live:
        raise ValueError(f"{table.live} jobs are {sum(lives)}")
    if table._chunks:
        table._last = table._chunks[-1]
        for column in table._last.columns():
            # Leave room for later jobs, as before.
            column.frombytes(bytes(column.itemsize * max(CHUNK - table._last.used, 0)))


def _check_lanes(chunk: Chunk, known: set[int]) -> None:
    if known.issuperset(chunk.lanes):
        return
    # Rows of settled jobs may name forgotten lanes.
    for lane, meta in zip(chunk.lanes, chunk.metas, strict=True):
        if meta and lane not in known:
            raise ValueError(f"a job is in lane {lane}, which is none")


def _put_blocks(frozen: Frozen, many: Sequence[SortedBlocks]) -> None:
    frozen.put("I", [len(blocks._keys) for blocks in many])
    frozen.put("I", [blocks._swept for blocks in many])
    frozen.put_arrays("Q", [keys[:] for blocks in many for keys in blocks._keys])
    frozen.put_arrays("Q", [values[:] for blocks in many for values in blocks._values])


def _take_blocks(source: Source) -> list[SortedBlocks]:
    counts, swepts = source.take("I"), source.take("I")
    pairs = zip(source.take_arrays("Q"), source.take_arrays("Q"), strict=True)
    many: list[SortedBlocks] = []
    for count, swept in zip(counts, swepts, strict=True):
        blocks = SortedBlocks()
        blocks._swept = swept
        for keys, values in _some(pairs, count):
            if not keys or len(keys) != len(values):
                raise ValueError(f"a block has {len(keys)} keys and {len(values)} values")
            blocks._keys.append(keys)
            blocks._values.append(values)
            blocks._firsts.append(keys[0])
            blocks.size += len(keys)
        many.append(blocks)
    return many


def _put_timetable(frozen: Frozen, agenda: Agenda) -> None:
    times = agenda.times
    frozen.put("q", (times.shift_ns,))
    blocks = times._shifted, times._wall, times._expiries_shifted, times._expiries_wall
    _put_blocks(frozen, blocks)


def _take_timetable(source: Source, agenda: Agenda) -> None:
    times = agenda.times
    (times.shift_ns,) = source.take("q")
    blocks = _take_blocks(source)
    times._shifted, times._wall, times._expiries_shifted, times._expiries_wall = blocks


def _put_leases(frozen: Frozen, agenda: Agenda) -> None:
    leases = agenda.leases
    frozen.put("q", (leases.shift_ns,))
    frozen.put("Q", sorted(leases.asked))
    frozen.put("Q", leases._deadlines.keys())
    frozen.put("Q", leases._deadlines.values())
    _put_blocks(frozen, (leases._order,))


def _take_leases(source: Source, agenda: Agenda) -> None:
    leases = agenda.leases
    (leases.shift_ns,) = source.take("q")
    leases.asked = set(source.take("Q"))
    leases._deadlines = dict(zip(source.take("Q"), source.take("Q"), strict=True))
    (leases._order,) = _take_blocks(source)


#: Writer and reader of each part of an agenda, in the order of the format.
_PARTS: Final[tuple[tuple[_Put, _Take], ...]] = (
    (_put_tables, _take_tables),
    (_put_lanes, _take_lanes),
    (_put_paused, _take_paused),
    (_put_schedules, _take_schedules),
    (_put_sources, _take_sources),
    (_put_running, _take_running),
    (_put_leases, _take_leases),
    (_put_timetable, _take_timetable),
    (_put_ages, _take_ages),
    (_put_controls, _take_controls),
    (_put_rated, _take_rated),
    (_put_held, _take_held),
)


def _put_steps(frozen: Frozen, steps: Steps) -> None:
    frozen.put("Q", steps.places)
    frozen.put_arrays("Q", [places[:] for places in steps.places.values()])
    frozen.put("Q", steps.signals)
    many = list(steps.signals.values())
    frozen.put_arrays("Q", [array("Q", (it.number for it in some)) for some in many])
    frozen.put_arrays("Q", [array("Q", (it.location for it in some)) for some in many])
    frozen.put_names([it.name for some in many for it in some])
    frozen.put_names([it.once for some in many for it in some])
    pairs = [(job, once) for job, some in steps.taken.items() for once in sorted(some)]
    frozen.put("Q", [job for job, _ in pairs])
    frozen.put_names([once for _, once in pairs])
    for waits in (steps.waits, steps.begun):
        frozen.put("Q", waits)
        frozen.put_names(list(waits.values()))
    calls = [(job, *call) for job, some in steps.calls.items() for call in some.items()]
    frozen.put("Q", chain.from_iterable(calls))
    frozen.put("Q", steps.orphans)
    frozen.put("Q", steps.undos)
    frozen.put("Q", list(steps.undos.values()))


def _take_steps(source: Source, steps: Steps) -> None:
    jobs, places = source.take("Q"), source.take_locations()
    steps.places = dict(zip(jobs, places, strict=True))
    jobs, numbers, locations = source.take("Q"), source.take_arrays("Q"), source.take_locations()
    names, onces = iter(_take_names(source)), iter(_take_names(source))
    for job, *columns in zip(jobs, numbers, locations, strict=True):
        rows = zip(*columns, strict=True)
        steps.signals[job] = [
            Signal(number, next(names), next(onces), location) for number, location in rows
        ]
    for job, once in zip(source.take("Q"), _take_names(source), strict=True):
        steps.taken.setdefault(job, set()).add(once)
    for waits in (steps.waits, steps.begun):
        waits.update(zip(source.take("Q"), _take_names(source), strict=True))
    calls = source.take("Q")
    for job, first, count in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
        steps.apply_called(job, first, count)
    steps.orphans = dict.fromkeys(source.take("Q"))
    steps.undos = dict(zip(source.take("Q"), source.take("Q"), strict=True))


def freeze_dedup(dedup: Dedup) -> Frozen:
    frozen = Frozen()
    frozen.put("q", [getattr(dedup, name) for name in _DEDUP_NUMBERS])
    frozen.put("Q", dedup._firsts)
    frozen.put_arrays("Q", [page.hashes[:] for page in dedup._pages])
    frozen.put_arrays("Q", [page.jobs[:] for page in dedup._pages])
    frozen.put_arrays("Q", [page.locations[:] for page in dedup._pages])
    frozen.put_arrays("q", [page.untils[:] for page in dedup._pages])
    return frozen


def thaw_dedup(source: Source) -> Dedup:
    """Return the table of keys that was frozen into these columns.

    Raises:
        ValueError: the columns are of another kind.
    """
    dedup = Dedup()
    for name, value in zip(_DEDUP_NUMBERS, source.take("q"), strict=True):
        setattr(dedup, name, value)
    dedup._firsts = source.take("Q").tolist()
    hashes, jobs = source.take_arrays("Q"), source.take_arrays("Q")
    locations, untils = source.take_locations(), source.take_arrays("q")
    dedup._pages = []
    for _, *columns in zip(dedup._firsts, hashes, jobs, locations, untils, strict=True):
        page = _Page()
        page.hashes, page.jobs, page.locations, page.untils = columns
        if any(len(column) != len(page.hashes) for column in columns):
            raise ValueError(f"a page has columns of {list(map(len, columns))} numbers")
        dedup._pages.append(page)
    if not dedup._pages or dedup._firsts[0] or sum(map(len, hashes)) != dedup.size:
        raise ValueError(f"{dedup.size} keys are {sum(map(len, hashes))}")
    return dedup


def _take_names(source: Source) -> list[bytes]:
    sizes, data = source.take("I"), source.take("B").tobytes()
    if sum(sizes) != len(data):
        raise ValueError(f"names of {sum(sizes)} bytes have {len(data)}")
    names: list[bytes] = []
    at = 0
    for size in sizes:
        names.append(data[at : at + size])
        at += size
    return names


def _some(values: Iterator[T], count: int) -> list[T]:
    some = list(islice(values, count))
    if len(some) != count:
        raise ValueError(f"{count} values are {len(some)}")
    return some
