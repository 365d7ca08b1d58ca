"""Every error that taskq raises, in one tree.

::

    TaskqError
    ├── UsageError              the caller's arguments, options or ids are wrong (also a ValueError)
    │   ├── InvalidCall         arguments do not fit the task's signature
    │   ├── InvalidStep         a step or wait that is invalid in every attempt
    │   ├── PayloadTooLarge     a payload, result or transaction is over its limit
    │   ├── CompressionUnavailable  the compression of a body is not installed
    │   ├── UnknownTask         a name that this app has not registered
    │   ├── InvalidJobId        the text cannot be a job id (also a JobNotFound)
    │   └── WrongLog            a job id of another task log (also a JobNotFound)
    ├── LogError                the directory cannot be used as asked
    │   ├── LogLocked           another process holds the writer lock for too long
    │   ├── LogFailed           an fsync failed: writes are refused until the log is opened again
    │   │   └── LogGone         its files were removed, moved or replaced while it was open
    │   ├── OutcomeUnknown      the fsync of this answer failed: it may or may not be kept
    │   ├── AppendFailed        the disk refused the write (full, quota): nothing of it is visible
    │   │   └── DiskFull        too little room for new jobs; settling and cancelling go on
    │   ├── FormatError         an unknown version, type or feature: a newer taskq wrote it
    │   ├── LogDamaged          bytes that were once durable are damaged
    │   ├── MomentGone          compaction removed the records of that moment
    │   ├── ReaderBusy          another process or stream reads the log under that name
    │   ├── ReaderFellBehind    compaction removed what the reader has not read yet
    │   ├── ReaderMismatch      the log has other records at the reader's position
    │   └── LogClosed           used after close()
    ├── StaleDelivery           this claim is over: the job was taken back or settled
    ├── DuplicateKey            another job holds the key, and on_conflict is "raise"
    ├── SourceMoved             the source's position is not the one in ingest(after=)
    ├── JobNotFound             no such job in this log; base of the id errors
    ├── NotDead                 only a dead letter can be requeued or purged
    ├── NotWaiting              only a waiting job can be edited
    ├── JobSettled              a signal for a job that never runs again
    ├── KeyHeld                 another job holds the dedup key of the requeued or moved job
    ├── JobNotYetEnqueued       a PendingJob has no id before its transaction
    └── JobError                raised by result() for a job without a value
        ├── JobFailed           dead: used up its attempts or was rejected
        ├── JobCancelled
        ├── JobExpired
        ├── ResultGone          the job succeeded but keeps no result
        └── ResultTimeout       not settled in time (also a TimeoutError)
"""

from taskq.core.errors import (
    AppendFailed,
    CompressionUnavailable,
    DiskFull,
    DuplicateKey,
    FormatError,
    InvalidCall,
    InvalidJobId,
    InvalidStep,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotYetEnqueued,
    JobSettled,
    KeyHeld,
    LogClosed,
    LogDamaged,
    LogError,
    LogFailed,
    LogGone,
    LogLocked,
    MomentGone,
    NotDead,
    NotWaiting,
    OutcomeUnknown,
    PayloadTooLarge,
    ReaderBusy,
    ReaderFellBehind,
    ReaderMismatch,
    ResultGone,
    ResultTimeout,
    SourceMoved,
    StaleDelivery,
    TaskqError,
    UnknownTask,
    UsageError,
    WrongLog,
)

__all__ = [
    "AppendFailed",
    "CompressionUnavailable",
    "DiskFull",
    "DuplicateKey",
    "FormatError",
    "InvalidCall",
    "InvalidJobId",
    "InvalidStep",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobNotFound",
    "JobNotYetEnqueued",
    "JobSettled",
    "KeyHeld",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogFailed",
    "LogGone",
    "LogLocked",
    "MomentGone",
    "NotDead",
    "NotWaiting",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "ReaderBusy",
    "ReaderFellBehind",
    "ReaderMismatch",
    "ResultGone",
    "ResultTimeout",
    "SourceMoved",
    "StaleDelivery",
    "TaskqError",
    "UnknownTask",
    "UsageError",
    "WrongLog",
]
