"""The tables of a lake in plain Python, from its records: no code is shared with the pipeline.

For logs whose clocks are not set, and that compaction wrote nothing again in.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from taskq.core.fingerprints import LOST_REASON, fingerprint, pattern_of

Row = dict[str, Any]
Rows = list[Row]
Given = Iterable[Mapping[str, Any]]
Lineage = Mapping[str, Sequence[tuple[str, int]]]

HOUR: Final = 3_600 * 10**9
_STATES: Final = {
    "requeued": "ready", "enqueued": "ready", "claimed": "running", "retried": "ready",
    "released": "ready",
}  # fmt: skip
_ENDS: Final = frozenset({"succeeded", "dead", "cancelled", "expired"})
_OVER: Final = _ENDS - {"dead"}
_EVENTS: Final = frozenset({*_STATES, *_ENDS, "purged"})
_CALLS: Final = (b"", b"{}", b"[]", b"null")


def moment(ns: int | None) -> datetime | None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return None if ns is None else epoch + timedelta(microseconds=ns // 1_000)


def day(ns: int | None) -> Any:
    at = moment(ns)
    return at and at.date()


def tables(
    records: Rows, lineage: Lineage, segments: Given = (), declared: Given = ()
) -> dict[str, Rows]:
    """Return the rows of each table; ``device_lag`` and ``breaks`` need the hub's rows, too."""
    jobs, attempts = jobs_of(records, lineage)
    last = {row["log_id"]: row for row in sorted(_read(records), key=lambda row: row["lsn"])}
    read = [{name: row[name] for name in ("device", "log_id", "ts_ns")} for row in last.values()]
    return {
        "jobs": jobs, "attempts": attempts, "steps": steps_of(records),
        "breaks": breaks_of(records, declared), **derived(jobs, attempts, segments, read),
    }  # fmt: skip


def derived(jobs: Rows, attempts: Rows, segments: Given = (), read: Given = ()) -> dict[str, Rows]:
    return {
        "rollup_hour": rollups_of(jobs, attempts), "failures": failures_of(jobs, attempts),
        "duplicates": duplicates_of(jobs), "device_lag": lag_of(jobs, segments, read),
    }  # fmt: skip


def _read(records: Iterable[Row]) -> Iterable[Row]:
    return (row for row in records if row["kind"] != "break")


# -- jobs, attempts and steps ----------------------------------------------------------------------


def jobs_of(records: Rows, lineage: Lineage) -> tuple[Rows, Rows]:
    jobs: Rows = []
    attempts: Rows = []
    for log in _logs(records, lineage):
        by_job: defaultdict[int, Rows] = defaultdict(list)
        for row in log.history:
            if row["kind"] in _EVENTS:
                by_job[row["job"]].append(row)
        for job, events in by_job.items():
            if events[0]["kind"] != "enqueued" or events[-1]["kind"] == "purged":
                continue
            made = _job(events, log.now_ns)
            if made["is_over"] and events[-1]["lsn"] < log.begins:
                continue  # it is the parent's
            if not made["is_over"]:
                made |= _carried_on([child for lsn, child in log.heirs if job < lsn], log)
            jobs.append(made)
            attempts += [
                _own(made, attempt)
                for attempt, (_, end) in zip(made["attempts"], _attempts(events), strict=True)
                if end is None or end["lsn"] >= log.begins
            ]
    return jobs, attempts


class _Log(NamedTuple):
    """A log: its records after its parents', and the logs that went on with it."""

    history: Rows
    now_ns: int
    begins: int
    heirs: list[tuple[int, str]]
    is_replaced: bool


def _logs(records: Rows, lineage: Lineage) -> Iterator[_Log]:
    own: defaultdict[str, Rows] = defaultdict(list)
    for row in sorted(_read(records), key=lambda row: row["lsn"]):
        own[row["log_id"]].append(row)
    device = {log_id: rows[-1]["device"] for log_id, rows in own.items()}
    for log_id, rows in own.items():
        history: Rows = []
        first = 0
        for parent, next_lsn in lineage.get(log_id, ()):
            history += [
                row | {"log_id": log_id, "device": rows[0]["device"], "writer": parent}
                for row in own.get(parent, ()) if first <= row["lsn"] < next_lsn
            ]  # fmt: skip
            first = next_lsn
        history += [row | {"writer": log_id} for row in rows]
        heirs = sorted(
            (chain[-1][1], child)
            for child, chain in lineage.items()
            if chain and chain[-1][0] == log_id and child in own
        )
        is_replaced = any(device[child] == device[log_id] for _, child in heirs)
        yield _Log(history, rows[-1]["ts_ns"], first, heirs, is_replaced)


def _carried_on(children: Sequence[str], log: _Log) -> Row:
    if children:
        return {"continued_in": children[-1]}
    return {"state": "lost", "due_ns": None} if log.is_replaced else {}


def _job(events: Rows, now_ns: int) -> Row:
    born, last = events[0], events[-1]
    ended = last if last["kind"] in _ENDS else None
    settled_ns = ended["ts_ns"] if ended else None
    tries = [_attempt(events, claim, end) for claim, end in _attempts(events)]
    fresh = {"succeeded", "requeued"}
    telling = [row for row in events[1:] if row["value"] or row["kind"] in fresh][-1:]
    reason = next((row for row in telling if row["kind"] not in fresh), None)
    due_ns = last["due_ns"] if last["due_ns"] and last["due_ns"] > now_ns else None
    state = _STATES.get(last["kind"], last["kind"])
    plain = ("device", "log_id", "job_id", "job", "queue", "task", "priority", "attempts_max",
             "key", "headers", "epoch")  # fmt: skip
    return {name: born[name] for name in plain} | {
        "state": "scheduled" if due_ns else state,
        "attempt": 0 if last["kind"] in {"enqueued", "requeued"} else last["attempt"],
        "enqueued_at": moment(born["ts_ns"]), "enqueued_ns": born["ts_ns"], "due_ns": due_ns,
        "expires_ns": None, "first_started_ns": tries[0]["started_ns"] if tries else None,
        "settled_ns": settled_ns, "settled_at": moment(settled_ns),
        "payload": born["value"],
        "result": last["value"] if last["kind"] == "succeeded" else None,
        "reason": reason and reason["value"].decode(), "stores_result": not born["flags"] & 2,
        "replay_of": dict(born["headers"] or ()).get("replay_of"), "continued_in": None,
        "enqueued_in": born["writer"],
        "settled_in": ended and ended["writer"], "attempts": tries,
        "is_over": state in _OVER, "date": day(born["ts_ns"]),
    }  # fmt: skip


def _attempts(events: Rows) -> list[tuple[Row, Row | None]]:
    return [
        (row, after if after and after["kind"] not in {"claimed", "purged", "requeued"} else None)
        for row, after in pairwise([*events, None])
        if row and row["kind"] == "claimed"
    ]


def _attempt(events: Rows, claim: Row, end: Row | None) -> Row:
    before = events[events.index(claim) - 1]
    since = None if before["kind"] == "claimed" else before["ts_ns"]
    if since is not None and before["kind"] != "requeued":
        since = max(since, before["due_ns"] or 0)
    was_lost = end is not None and (end["kind"], end["cause"]) == ("released", "owner_lost")
    return {
        "number": claim["attempt"],
        "owner": claim["owner"],
        "started_ns": claim["ts_ns"],
        "ended_ns": end and end["ts_ns"],
        "outcome": end and ("lost" if was_lost else end["kind"]),
        "reason": end["value"].decode() or None
        if end and end["value"] and end["kind"] != "succeeded" else None,
        "wait_ns": None if since is None else max(claim["ts_ns"] - since, 0),
        "run_ns": end and end["ts_ns"] - claim["ts_ns"],
    }  # fmt: skip


def _own(job: Row, attempt: Row) -> Row:
    names = ("device", "log_id", "job_id", "job", "queue", "task", "key", "is_over")
    return {name: job[name] for name in names} | attempt | {
        "started_at": moment(attempt["started_ns"]),
        "ended_at": moment(attempt["ended_ns"]),
        "date": day(attempt["started_ns"]),
    }  # fmt: skip


def steps_of(records: Rows) -> Rows:
    first: dict[Any, Row] = {}
    for row in sorted(records, key=lambda row: row["lsn"] or 0):
        if row["place"] is not None:
            first.setdefault((row["log_id"], row["job"], row["place"]), row)
    return [_step(row) for row in first.values()]


def _step(row: Row) -> Row:
    name, _, number = row["step"].partition("#")
    began_ns, value = row["began_ns"], row["value"]
    size = None if value is None else len(value)
    if value is not None and value.startswith(b'{"left out":'):
        size = json.loads(value)["left out"]["size"]
    names = ("device", "log_id", "job_id", "job", "place", "attempt")
    return {name: row[name] for name in names} | {
        "name": name, "number": int(number), "form": row["state"],
        "began_at": moment(began_ns), "ended_at": moment(row["ts_ns"]),
        "began_ns": began_ns, "ended_ns": row["ts_ns"],
        "took_ns": None if began_ns is None else max(row["ts_ns"] - began_ns, 0),
        "size_bytes": size, "date": day(row["ts_ns"]),
    }  # fmt: skip


# -- tables of these -------------------------------------------------------------------------------


def rollups_of(jobs: Rows, attempts: Rows) -> Rows:
    counts: defaultdict[Any, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    spans: defaultdict[Any, dict[str, list[int]]] = defaultdict(lambda: {"wait": [], "run": []})

    def at(row: Row, ns: int) -> Any:
        return row["device"], row["queue"], row["task"], ns // HOUR

    for job in jobs:
        if job["enqueued_ns"] is not None and job["enqueued_in"] == job["log_id"]:
            counts[at(job, job["enqueued_ns"])]["enqueued"] += 1
        if job["settled_ns"] is not None and job["settled_in"] == job["log_id"]:
            counts[at(job, job["settled_ns"])][job["state"]] += 1
    for attempt in attempts:
        if attempt["ended_ns"] is not None:
            place = at(attempt, attempt["ended_ns"])
            counts[place][f"attempts_{attempt['outcome']}"] += 1
            for name, values in spans[place].items():
                if attempt[f"{name}_ns"] is not None and attempt[f"{name}_ns"] >= 0:
                    values.append(attempt[f"{name}_ns"])
    return [
        made for place, count in counts.items() if (made := _rollup(place, count, spans[place]))
    ]


def _rollup(place: Any, count: Mapping[str, int], spans: Mapping[str, list[int]]) -> Row | None:
    device, queue, task, hour = place
    made: Row = {"device": device, "queue": queue, "task": task, "hour": moment(hour * HOUR)}
    made |= {name: count[name] for name in ("enqueued", *_ENDS)}
    made["settled"] = sum(count[name] for name in _ENDS)
    outcomes = ("succeeded", "retried", "dead", "released", "lost")
    made |= {f"attempts_{name}": count[f"attempts_{name}"] for name in outcomes}
    ended = sum(number for name, number in count.items() if name.startswith("attempts_"))
    failed = sum(count[f"attempts_{name}"] for name in ("retried", "dead", "lost"))
    ran = failed + count["attempts_succeeded"]
    over = count["dead"] + count["succeeded"]
    made |= {
        "attempts_ended": ended, "failure_rate": failed / ran if ran else None,
        "dead_rate": count["dead"] / over if over else None, "date": day(hour * HOUR),
    }  # fmt: skip
    for name, values in spans.items():
        ranks = (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100))
        for rank, percent in ranks:
            value = float(np.percentile(np.array(values), percent)) / 1e9 if values else None
            made[f"{name}_{rank}_seconds"] = value
    return made if made["enqueued"] or made["settled"] or ended else None


def failures_of(jobs: Rows, attempts: Rows) -> Rows:
    dead = [row for row in jobs if row["state"] == "dead" and row["continued_in"] is None]
    places: defaultdict[Any, set[str]] = defaultdict(set)
    for job in dead:
        for call in _calls(job):
            places[call] |= _died_at(job)
    groups: defaultdict[Any, Rows] = defaultdict(list)
    for attempt in attempts:
        if attempt["outcome"] in {"retried", "dead", "lost"}:
            lost = LOST_REASON if attempt["outcome"] == "lost" else ""
            reason = attempt["reason"] or lost
            group = groups[attempt["task"], pattern_of(reason)]
            group.append(attempt | {"reason": reason, "at_ns": attempt["ended_ns"], "failed": 1})
    for job in dead:
        row = job | {"reason": job["reason"] or "", "at_ns": job["settled_ns"], "failed": 0}
        row |= {"poison": any(len(places[call]) >= 2 for call in _calls(job))}
        groups[job["task"], pattern_of(row["reason"])].append(row)
    return [_failure(task, pattern, rows) for (task, pattern), rows in groups.items()]


def _calls(job: Row) -> list[Any]:
    calls: list[Any] = []
    if job["key"] is not None:
        calls.append((job["task"], "key", job["key"], job["queue"]))
    if job["payload"] is not None and job["payload"] not in _CALLS:
        calls.append((job["task"], "payload", hashlib.sha256(job["payload"]).digest()))
    return calls


def _died_at(job: Row) -> set[str]:
    died = [tried for tried in job["attempts"] if tried["outcome"] == "dead"]
    if not died:
        return {job["device"]}
    if any((tried["reason"] or "").startswith("WorkerLost") for tried in died):
        died += [tried for tried in job["attempts"] if tried["outcome"] == "lost"]
    return {f"{job['device']} {tried['owner'] or ''}" for tried in died}


def _failure(task: str | None, pattern: str, rows: Rows) -> Row:
    dead = [row for row in rows if not row["failed"]]
    poison = sorted(row["job_id"] for row in dead if row["poison"])
    seen = [row["at_ns"] for row in rows if row["at_ns"] is not None]
    names = ("device", "job_id", "reason")
    example = max(rows, key=lambda row: (row["at_ns"] or 0, *(row[name] for name in names)))
    workers = {(row["device"], row["owner"]) for row in rows if row["failed"] and row["owner"]}
    return {
        "fingerprint": fingerprint(task, pattern), "task": task, "pattern": pattern,
        "failed_attempts": len(rows) - len(dead),
        "jobs": len({(row["log_id"], row["job_id"]) for row in rows}), "dead_jobs": len(dead),
        "devices": len({row["device"] for row in rows}), "workers": len(workers),
        "first_seen": moment(min(seen, default=None)), "last_seen": moment(max(seen, default=None)),
        "queues": sorted({row["queue"] for row in rows})[:20],
        "example_device": example["device"], "example_job_id": example["job_id"],
        "example_reason": example["reason"][:2_000] or None,
        "poison_jobs": len(poison), "poison": bool(poison), "poison_job_ids": poison[:20],
    }  # fmt: skip


def duplicates_of(jobs: Rows) -> Rows:
    ran: defaultdict[Any, defaultdict[str, Rows]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        is_newest = job["continued_in"] is None
        if job["key"] is not None and job["first_started_ns"] is not None and is_newest:
            ran[job["queue"], job["key"]][job["device"]].append(job)
    made = []
    for (queue, key), devices in ran.items():
        every = [row for rows in devices.values() for row in rows]
        firsts = sorted(
            (*min((row["first_started_ns"], row["job_id"]) for row in rows), device, len(rows))
            for device, rows in devices.items()
        )
        firsts.sort(key=lambda first: (first[0], first[2]))
        if len(devices) > 1:
            made.append({
                "queue": queue, "key": key, "devices": len(devices), "jobs": len(every),
                "tasks": sorted({row["task"] for row in every} - {None})[:20],
                "succeeded": sum(row["state"] == "succeeded" for row in every),
                "first_at": moment(firsts[0][0]),
                "last_at": moment(max(row["first_started_ns"] for row in every)),
                "runs": [
                    {"device": device, "job_id": job_id, "started_at": moment(ns), "jobs": count}
                    for ns, job_id, device, count in firsts[:20]
                ],
            })  # fmt: skip
    return made


def lag_of(jobs: Rows, segments: Given, read: Given) -> Rows:
    """Return a row of each log, without the columns that depend on the moment of the look."""
    groups: defaultdict[Any, dict[str, list[Any]]]
    groups = defaultdict(lambda: {"jobs": [], "segments": [], "read": []})
    open_jobs = [row for row in jobs if not row["is_over"] and row["continued_in"] is None]
    for name, rows in (("jobs", open_jobs), ("segments", segments), ("read", read)):
        for row in rows:
            groups[row["device"], row["log_id"]][name].append(row)
    made = [_lag(*place, *rows.values()) for place, rows in groups.items()]
    by_device: defaultdict[str, Rows] = defaultdict(list)
    for row in sorted(made, key=_arrival):
        by_device[row["device"]].append(row)
    for rows in by_device.values():
        for row in rows:
            row |= {"logs_of_device": len(rows), "is_current": row is rows[0]}
    return made


def _arrival(row: Row) -> Any:
    times = (row.pop("arrived_ns"), row.pop("recorded_ns"))
    return [(time is None, -(time or 0)) for time in times], row["log_id"]


def _lag(device: str, log_id: str, jobs: Rows, segments: Rows, read: Rows) -> Row:
    missing = sorted(row["gap_from"] for row in segments if row["gap_from"] is not None)
    times = [row["last_record_ns"] for row in segments if row["last_record_ns"] is not None]
    skews = [row["last_record_ns"] - row["modified_ns"] for row in segments
             if row["last_record_ns"] is not None]  # fmt: skip
    arrived = max((row["modified_ns"] for row in segments), default=None)
    recorded = max(times, default=read[0]["ts_ns"] if read else None)
    skew = max(skews, default=None)
    waiting = [row["enqueued_ns"] for row in jobs if row["state"] == "ready"]
    clock = None
    if skew is not None:
        clock = "ahead" if skew > 60 * 10**9 else "ok" if skew >= -HOUR else "behind or late"
    return {
        "device": device, "log_id": log_id, "arrived_ns": arrived, "recorded_ns": recorded,
        "last_record_at": moment(recorded), "last_arrival_at": moment(arrived),
        "clock_skew_seconds": None if skew is None else skew / 1e9, "clock": clock,
        "waiting": len(waiting),
        **{state: sum(row["state"] == state for row in jobs)
           for state in ("scheduled", "running", "dead")},
        "oldest_waiting_at": moment(min(waiting, default=None)),
        "segments": len(segments), "size_bytes": sum(row["size_bytes"] for row in segments),
        "missing_segments": len(missing), "missing_from": missing[:20],
    }  # fmt: skip


def breaks_of(records: Rows, declared: Given = ()) -> Rows:
    made: dict[Any, Row] = {}
    for row in records:
        if row["kind"] == "break":
            it = json.loads(row["value"])
            made[row["log_id"], it["what"], it.get("next_lsn") or row["lsn"]] = {
                "device": row["device"], "log_id": row["log_id"], "kind": it["what"],
                "is_declared": "end_lsn" in it and it.get("cause") != "compaction took it",
                "lsn": row["lsn"], "next_lsn": it.get("next_lsn"),
                "end_lsn": it.get("end_lsn"), "cause": it.get("cause"),
            }  # fmt: skip
    for gap in declared:
        place = gap["log_id"], gap["kind"], gap["next_lsn"] or gap["lsn"]
        made.setdefault(place, {**gap, "is_declared": True})
    return list(made.values())
