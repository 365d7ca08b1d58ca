"""The kinds of record, their flags and options: numbers that never change, only grow."""

from __future__ import annotations

import enum


class Kind(enum.IntEnum):
    """What a record says happened. 128 and above may be skipped by a fold that knows them not."""

    #: a job came into being (body: payload)
    ENQUEUED = 1
    #: a worker took it; counts an attempt
    CLAIMED = 2
    #: it ran to its end (body: result)
    SUCCEEDED = 3
    #: it failed and is due again later (body: reason)
    RETRIED = 4
    #: it failed for good (body: reason)
    DIED = 5
    #: it was given back; the cause says by whom, and the attempt count says whether one was burnt
    RELEASED = 6
    #: it was withdrawn before it ran
    CANCELLED = 7
    #: its time had passed before it ran
    EXPIRED = 8
    #: wall time made a step; relative times shift by it
    CLOCK = 32
    #: who an owner is (body: JSON), for people who read the log later
    OWNER = 128


class Flag(enum.IntFlag):
    """Bits of a record's flags field."""

    #: the record ends in a CRC of its own
    CHECKED = 1
    #: keep no result
    DROP_RESULT = 2
    #: run only once the claim is on disk
    DURABLE_CLAIM = 4
    #: the key is held until the job is settled
    KEY_UNTIL_SETTLED = 8


class Option(enum.IntEnum):
    """Tags of the optional fields (tag u8, length u16, value)."""

    #: i64, relative: the moment shifts when the clock steps
    DUE = 1
    #: i64, wall time: eta
    DUE_WALL = 2
    #: i64, wall time
    EXPIRES = 3
    #: bytes, scoped to the queue
    KEY = 4
    #: i64 nanoseconds
    WINDOW = 5
    #: pairs of (length u16, UTF-8)
    HEADERS = 6
    #: bytes: part of the lane (kept free for limits per key)
    CONCURRENCY_KEY = 7
    #: u64, on records that end a job whose key is held until then
    KEY_HASH = 8


class Cause(enum.IntEnum):
    """Why a delivery was released, or by what a job died."""

    #: the caller said so
    CALLER = 0
    #: the worker is shutting down
    DRAIN = 1
    #: the task asked to wait without burning an attempt
    SNOOZE = 2
    #: the owner's process is gone; the attempt counts
    OWNER_LOST = 3
    #: the task's function raised on its last attempt
    EXHAUSTED = 4
    #: rejected for good: Discard, arguments that do not validate, an unknown signature
    REJECTED = 5
