"""The kinds of record, their flags and options: numbers that never change, only grow."""

from __future__ import annotations

import enum
from typing import Final


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
    DEAD = 5
    #: it was given back; the cause says by whom, and the attempt count says whether one was burnt
    RELEASED = 6
    #: it was withdrawn before it ran, or stopped while it did: the cause tells
    CANCELLED = 7
    #: its time had passed before it ran
    EXPIRED = 8
    #: the job as it stands, written again by compaction (body: its ENQUEUED record, then its end)
    CARRIED = 9
    #: a dead letter is ready again, as if new (the same layout as CARRIED)
    REQUEUED = 10
    #: a dead letter is forgotten
    PURGED = 11
    #: the deadline of a claim was moved
    EXTENDED = 12
    #: wall time made a step; relative times shift by it
    CLOCK = 32
    #: the queue's jobs wait until it is resumed (body: its name)
    PAUSED = 33
    #: they may be claimed again
    RESUMED = 34
    #: how many jobs of a lane ended so far, and how (body: the lane's key)
    TALLIED = 35
    #: everything needed from segments before this lsn was written again: they may be gone
    COMPACTED = 36
    #: how far an upload has come: in the frame that holds the jobs that brought it there
    ADOPTED = 37
    #: somebody wants the running job cancelled: its owner stops it, and it never runs again
    CANCEL_ASKED = 38
    #: how far a schedule has ticked: in the frame that holds the jobs of its ticks (body: its name)
    TICKED = 39
    #: when the claims of a group were made that count against a rate, as far as that matters
    RATED = 41
    #: a job waits otherwise than before: elsewhere, or until another moment (as CARRIED)
    EDITED = 42
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
    #: the body is compressed with zlib
    ZLIB = 16
    #: the body is compressed with zstd
    ZSTD = 32
    #: the body names a file beside the log: its SHA-256 (32 bytes) and its size (u64)
    SPILLED = 64
    #: the job is part of a flow: its options tell whom it waits for, and who waits for it
    FLOW = 128


class Option(enum.IntEnum):
    """Tags of the optional fields (tag u8, length u16, value)."""

    #: i64, relative: the moment shifts when the clock steps
    DUE = 1
    #: i64, wall time: eta
    DUE_WALL = 2
    #: i64, wall time: a date that was given as such
    EXPIRES = 3
    #: bytes, scoped to the queue
    KEY = 4
    #: i64 nanoseconds
    WINDOW = 5
    #: pairs of (length u16, UTF-8)
    HEADERS = 6
    #: bytes: part of the lane; limits hold for each
    CONCURRENCY_KEY = 7
    #: u64, on records that end a job whose key is held until then (0: the job's record does not
    #: read back); on EDITED, of its key in the queue that it left
    KEY_HASH = 8
    #: i64, relative: the claim is over by then
    LEASE = 9
    #: i64, relative: the key is held until then, whatever becomes of the job
    KEY_UNTIL = 10
    #: epoch u64, owner u64: whose claim a carried job is under
    CLAIM = 11
    #: i64: when a carried job ended
    ENDED = 12
    #: i64 nanoseconds: keep the job so long after its end
    KEEP = 13
    #: the attempts of a carried job so far, packed
    HISTORY = 14
    #: u64, on ENQUEUED: the job took its key over from this one
    REPLACES = 15
    #: i64, relative: a job expires then unless it ran; of a carried job, as of now
    EXPIRES_RELATIVE = 16
    #: what a held job waits for, and what becomes of it when that fails
    NEEDS = 18
    #: the held jobs that wait for this one: u64 each; of a record that ends it, first of its
    #: options: those for which it counts as done (with the highest bit: that are cancelled for it)
    UNLOCKS = 19
    #: whom a held job waits for: runs of (first job u64, count u32)
    INPUTS = 20
    #: on the first job of a flow: jobs u32, how many of the first make up its result u32, its shape
    FLOW = 21
    #: how the results of a held job's inputs nest when they are handed over
    SHAPE = 22
    #: on CLAIMED: the claim counts against a rate of so many u32 in nanoseconds i64
    RATE = 23
    #: nothing, of a carried job that runs: somebody wants it cancelled
    CANCEL_WANTED = 26
    #: UTF-8: when a schedule ticks
    RULE = 27
    #: JSON: what people want to see of a schedule
    DETAILS = 28
    #: zlib of UTF-8, on records that end an attempt: the latest of the lines that it logged
    LINES = 29


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
    #: the claim's deadline passed; the attempt counts
    LEASE_OVER = 6
    #: another job took over the key
    REPLACED = 7
    #: its queue was cancelled as a whole; written no more
    PURGE = 8
    #: what a held job waited for is there
    INPUTS = 9
    #: what a held job waited for failed
    UPSTREAM = 10
    #: it was cancelled while it ran
    ASKED = 11
    #: a condition that it needs does not hold; no attempt is burnt
    CONDITION = 12
    #: its queue backs off, since the network fails; no attempt is burnt
    BREAKER = 13


#: Flags of a payload or result that is not stored as it was given.
PACKED: Final = int(Flag.ZLIB | Flag.ZSTD | Flag.SPILLED)
#: Records that concern a job that an earlier record brought into being; its number is at byte 16.
JOB_KINDS: Final = frozenset(
    {
        *(kind for kind in Kind if Kind.CLAIMED <= kind <= Kind.EXTENDED),
        Kind.CANCEL_ASKED,
        Kind.EDITED,
    }
)
#: Records that hold a job's whole ENQUEUED record.
CARRYING_KINDS: Final = frozenset({Kind.CARRIED, Kind.REQUEUED, Kind.EDITED})
