"""Options of an enqueue, checked once, and the frozen ``Call`` that holds them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
)

from taskq.calls.habits import CALLS, no_attribute, option_instead
from taskq.core import durations, errors, model, parsing, records
from taskq.core.values import TypedDict, dataclass
from taskq.log.format.bodies import Compression, check_compression
from taskq.log.requests import EnqueueSpec, Item, Plain

if TYPE_CHECKING:
    from pathlib import Path

    from taskq.calls.signature import Signature
    from taskq.core import rates, views
    from taskq.core.why import Reason

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
#: type of an app's connection
C_co = TypeVar("C_co", covariant=True)

#: A dedup key, or a function of a call's arguments that returns one.
Key: TypeAlias = str | bytes | Callable[..., str | bytes]
#: How long a key is held beyond its window.
Until: TypeAlias = Literal["settled"]
#: Behaviour of an enqueue whose key is held.
OnConflict: TypeAlias = Literal["first", "replace", "raise"]

#: Fields that need a key: the option of each field, and its value without a key.
_DEDUP_FIELDS: Final[dict[str, tuple[str, object]]] = {
    "window_ns": ("window", 0),
    "until_settled": ("until", False),
    "on_conflict": ("on_conflict", model.Conflict.FIRST),
}
_HEADER_LENGTHS_BYTES: Final = 4
_SPECS_KEPT: Final = 1_024
#: Bytes of a record's length and CRC; of its optional fields without key and headers.
_RECORD_EDGES_BYTES: Final = 8
_OPTIONS_BYTES: Final = 64


class JobOptions(TypedDict, total=False):
    """Options of jobs common to tasks, calls and ``put``."""

    #: name of the queue
    queue: str
    #: 0 to 9, higher first
    priority: int
    #: time between the enqueue and the earliest run
    delay: durations.Duration
    #: how long the key is held; None: until the job is settled
    window: durations.Duration | None
    #: "settled", with a window: hold the key until the window is over and the job is settled
    until: Until | None
    #: if the key is held: "first" returns the holder, "replace" takes the key over unless the
    #: holder is running (a waiting holder is cancelled), "raise" raises ``DuplicateKey``
    on_conflict: OnConflict
    #: small strings that travel with the job; headers of a call are added to its task's
    headers: Mapping[str, str]
    #: how long the job and its result are kept after its end; "never": for ever; None: as
    #: configured for its queue or log
    keep: durations.Duration | None
    #: compression of payload and result, "none" for none; None: as configured for queue or log
    compress: Compression | None


class OptionChanges(JobOptions, total=False):
    """Keywords of ``.options(...)``; each replaces the task's own for this call."""

    #: how often the job may run; 0 for no limit
    attempts: int
    #: the job is not run before this moment (a datetime with a time zone)
    eta: datetime | None
    #: the job expires unless it ran by then: a duration from now, or a datetime with a time zone
    expires: durations.Duration | datetime | None
    #: one job at a time may hold this key in its queue
    key: Key | None
    #: the task's limits apply to the jobs of each such key; None: to all jobs of the task together
    concurrency_key: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of an enqueue, checked and in the log's units. Make them with ``changed``."""

    queue: str = "default"
    priority: int = model.PRIORITY_DEFAULT
    attempts: int = model.ATTEMPTS_DEFAULT
    due_ns: int = 0
    due_is_wall: bool = False
    expires_ns: int = 0
    expires_is_wall: bool = False
    key: Key | None = None
    window_ns: int = 0
    until_settled: bool = False
    on_conflict: model.Conflict = model.Conflict.FIRST
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency_key: Key | None = None
    keep_ns: int = 0
    compress: Compression | None = None

    def changed(self, changes: OptionChanges) -> Options:
        """Return the options with these changes.

        Raises:
            UsageError: an option is unknown, wrong, or contradicts another.
        """
        unknown = changes.keys() - OptionChanges.__annotations__.keys()
        if unknown:
            raise no_option(min(unknown), OptionChanges.__annotations__)
        values: dict[str, Any] = {
            name: changes[name] for name in ("queue", "key", "concurrency_key") if name in changes
        }
        for number in ("priority", "attempts"):
            if number in changes:
                values[number] = parsing.whole(changes[number], number)
        values |= _due(changes)
        if "expires" in changes:
            values |= _expiry(changes["expires"])
        values |= _dedup(changes)
        if "headers" in changes:
            values["headers"] = checked_headers(changes["headers"], self.headers)
        if "keep" in changes:
            values["keep_ns"] = _keep_ns(changes["keep"])
        values |= _storage(changes)
        options = replace(self, **values) if values else self
        if options.key is None:
            for name, (word, nothing) in _DEDUP_FIELDS.items():
                if getattr(options, name) != nothing:
                    raise errors.UsageError(
                        f"{word} is given without a key: add key=, or leave it out"
                    )
        return options

    def spec(self, task: str, flags: records.Flag) -> EnqueueSpec:
        """Return the options that the log encodes once for many jobs.

        Raises:
            UsageError: queue, priority or attempts is out of range.
        """
        return spec_of(self.queue, task, self.priority, self.attempts, flags)

    def fixed_extras(self, task: str) -> model.Extras | None:
        """Return the rarer options, if the key, if any, is text or bytes.

        Raises:
            UsageError: the key is neither text nor bytes, or too long.
        """
        key = None if self.key is None else key_bytes(task, self.key)
        return self.extras(key, self.fixed_concurrency_key(task))

    def fixed_concurrency_key(self, task: str) -> bytes:
        """Return the concurrency key if it is text or bytes; b"" if it is a function or missing.

        Raises:
            UsageError: the key is neither, or too long.
        """
        key = self.concurrency_key
        return b"" if key is None or callable(key) else concurrency_key_bytes(task, key)

    def extras(self, key: bytes | None, concurrency_key: bytes = b"") -> model.Extras | None:
        """Return the rarer options with these keys; None if all have their defaults."""
        if key is None and not (
            self.due_ns or self.expires_ns or self.headers or self.keep_ns or concurrency_key
        ):
            return None
        return model.Extras(
            due_ns=self.due_ns,
            due_is_wall=self.due_is_wall,
            expires_ns=self.expires_ns,
            expires_is_wall=self.expires_is_wall,
            key=key,
            window_ns=self.window_ns,
            until_settled=self.until_settled,
            on_conflict=self.on_conflict,
            headers=dict(self.headers),
            keep_ns=self.keep_ns,
            concurrency_key=concurrency_key,
        )


def no_option(name: str, known: Iterable[str]) -> errors.UsageError:
    return errors.UsageError(f"there is no option {name!r}: {option_instead(name, known)}")


# Typed: 5.0 is no priority, although it equals 5.
_kept_spec: Final = functools.lru_cache(_SPECS_KEPT, typed=True)(EnqueueSpec)


def spec_of(
    queue: str, task: str, priority: int, attempts: int, flags: records.Flag
) -> EnqueueSpec:
    """Return a spec, from a small cache: making one costs more than encoding a job."""
    try:
        return _kept_spec(queue, task, priority, attempts, flags)
    except TypeError:  # an unhashable value is wrong: the spec raises the error
        return EnqueueSpec(queue, task, priority, attempts, flags)


class TaskPort(Protocol[R_co]):
    """A task as seen by its calls and handles."""

    name: str
    limit: rates.Limit | None
    store_result: bool

    @property
    def app(self) -> AppPort[Any]: ...
    @property
    def signature(self) -> Signature: ...
    @property
    def takes_anything(self) -> bool: ...
    @property
    def gives_json(self) -> bool: ...
    @property
    def decode_result(self) -> Callable[[bytes], R_co]: ...


class AppPort(Protocol[C_co]):
    """An app as seen by handles and flows. ``enqueue_flow`` returns a handle of a higher layer."""

    @property
    def data_dir(self) -> Path: ...
    @property
    def dead(self) -> Any: ...
    @property
    def _connection(self) -> C_co: ...

    @property
    def tasks(self) -> Mapping[str, TaskPort[Any]]: ...
    def why(self, job: str, /) -> Awaitable[Reason]: ...
    def attempts(self, job: str, /) -> Awaitable[tuple[views.AttemptView, ...]]: ...
    def enqueue_flow(self, flow: Any, /) -> Awaitable[Any]: ...


class Runnable(Generic[R_co]):
    """A call, or a flow of calls, with a result of type ``R`` once it has run."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Runnable[R_co]):
    """A call of a task, checked and encoded, not enqueued yet. It may be enqueued repeatedly.

    Attributes:
        name: name of the task.
        task: the task, None if this process does not know it.
        body: the encoded arguments, not compressed.
        flags: flags of the task's jobs.
        chosen: queue, priority and the other options.
        spec: options that are encoded once for many jobs.
        extras: the rarer options, None without any.
    """

    name: str
    task: TaskPort[R_co] | None
    body: bytes
    flags: records.Flag
    chosen: Options
    spec: EnqueueSpec
    extras: model.Extras | None

    if not TYPE_CHECKING:  # a type checker would accept any name otherwise

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, "a call", name, CALLS, "call")

    def options(self, **changes: Unpack[OptionChanges]) -> Call[R_co]:
        """Return a new call with these options changed; a key is kept unless another is given.

        Raises:
            UsageError: an option is wrong, or a key is a function, but the arguments are encoded.
        """
        key = changes.get("key")
        if callable(key):
            raise errors.UsageError(
                f"{self.name}: a Call takes its key as text or bytes, not a function"
            )
        if callable(changes.get("concurrency_key")):
            raise errors.UsageError(
                f"{self.name}: a Call takes its concurrency_key as text or bytes"
            )
        if self.task is not None and self.task.limit is None:
            check_unlimited(self.name, changes)
        held = self.extras or model.Extras()
        chosen = replace(
            self.chosen, key=held.key, concurrency_key=held.concurrency_key or None
        ).changed(changes)
        return replace(
            self,
            chosen=chosen,
            spec=chosen.spec(self.name, self.flags),
            extras=chosen.fixed_extras(self.name),
        )

    def _with_extras(self, extras: model.Extras) -> Call[R_co]:
        # ``replace`` takes three times as long, and a flow may have ten thousand calls.
        return Call(
            name=self.name,
            task=self.task,
            body=self.body,
            flags=self.flags,
            chosen=self.chosen,
            spec=self.spec,
            extras=extras,
        )


def make_call(
    name: str, task: TaskPort[Any] | None, body: bytes, flags: records.Flag, chosen: Options
) -> Call[Any]:
    """Return a call whose key, if any, is text or bytes."""
    parsing.check_name("task name", name)
    return Call(
        name=name,
        task=task,
        body=body,
        flags=flags,
        chosen=chosen,
        spec=chosen.spec(name, flags),
        extras=chosen.fixed_extras(name),
    )


def checked_calls(calls: Iterable[Call[R]], method: str = "enqueue_many") -> list[Call[R]]:
    """Return a method's argument as a list of calls; raise UsageError if one is no call."""
    whole: object = calls
    takes = f"{method}() takes a list of calls such as task.call(...)"
    if not isinstance(whole, Iterable):
        raise errors.UsageError(f"{takes}, got {whole!r:.60}")
    given = list(calls)
    for call in given:
        if not isinstance(call, Call):
            raise errors.UsageError(f"{takes}, got {call!r:.60}")
    return given


def key_bytes(task: str, key: object, what: str = "key") -> bytes:
    """Return a dedup key, or the key named ``what``, as bytes for the log.

    Raises:
        UsageError: it is neither text nor bytes, or not 1 to KEY_BYTES_MAX bytes long.
    """
    encoded = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if not isinstance(encoded, bytes):
        kinds = "text or bytes" if what == "key" else "text, bytes or a whole number"
        raise errors.UsageError(f"{task}: the {what} is {key!r:.60}, it must be {kinds}")
    if not 1 <= len(encoded) <= model.KEY_BYTES_MAX:
        remedy = "use a hash of it" if encoded else "None stands for no key"
        raise errors.UsageError(
            f"{task}: the {what} has {len(encoded)} bytes, it must have 1 to "
            f"{model.KEY_BYTES_MAX}: {remedy}"
        )
    return encoded


def check_unlimited(task: str, changes: OptionChanges) -> None:
    """Refuse a concurrency key for a task without a limit, where it would have no effect."""
    if changes.get("concurrency_key") is not None:
        raise errors.UsageError(
            f"{task}: concurrency_key is given, but the task has no limit: give @task "
            f"concurrency= or rate=, or leave it out"
        )


def concurrency_key_bytes(task: str, key: object) -> bytes:
    """Return a concurrency key as bytes for the log; b"" for None."""
    if key is None:
        return b""
    return key_bytes(task, str(key) if type(key) is int else key, "concurrency_key")


def checked_headers(more: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return a task's headers with a call's headers added; names and values must be text."""
    if not isinstance(more, Mapping):
        raise errors.UsageError(f"headers is {more!r:.60}: give a dict of texts")
    headers = {**own, **more}
    pairs: Iterable[tuple[object, object]] = headers.items()
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise errors.UsageError(
                f"header {name!r} is {value!r:.60}: names and values must be text"
            )
    try:
        size = headers_bytes(headers)
    except UnicodeEncodeError as error:
        raise errors.UsageError(f"the headers hold text that UTF-8 cannot write: {error}") from None
    if size > model.HEADERS_BYTES_MAX:
        raise errors.PayloadTooLarge(
            "the headers", size, model.HEADERS_BYTES_MAX, "put data in the arguments"
        )
    return headers


def transaction_bytes(items: Iterable[Item] | Plain) -> int:
    """Return the most bytes that the jobs of one transaction can take in the log."""
    if isinstance(items, Plain):
        edges = len(items.spec.tail) + _RECORD_EDGES_BYTES
        return sum(map(len, items.bodies)) + edges * len(items.bodies)
    size = 0
    for spec, body, extras in items:
        size += len(spec.tail) + len(body) + _RECORD_EDGES_BYTES
        if extras is not None:
            size += _OPTIONS_BYTES + len(extras.key or b"") + len(extras.concurrency_key)
            size += headers_bytes(extras.headers)
            if extras.flow is not None:
                size += extras.flow.size
    return size


def headers_bytes(headers: Mapping[str, str]) -> int:
    return sum(
        len(name.encode()) + len(value.encode()) + _HEADER_LENGTHS_BYTES
        for name, value in headers.items()
    )


def _due(changes: OptionChanges) -> dict[str, Any]:
    eta = changes.get("eta")
    if "delay" in changes and eta is not None:
        raise errors.UsageError("delay and eta are both given: a job has one due time")
    if eta is not None:
        return {"due_ns": durations.moment_ns(eta, "eta"), "due_is_wall": True}
    if "delay" in changes:
        return {"due_ns": durations.nanoseconds(changes["delay"], "delay"), "due_is_wall": False}
    return {"due_ns": 0, "due_is_wall": False} if "eta" in changes else {}


def _expiry(expires: durations.Duration | datetime | None) -> dict[str, Any]:
    if expires is None:
        return {"expires_ns": 0, "expires_is_wall": False}
    if isinstance(expires, datetime):
        return {"expires_ns": durations.moment_ns(expires, "expires"), "expires_is_wall": True}
    return {
        "expires_ns": durations.positive_nanoseconds(expires, "expires"),
        "expires_is_wall": False,
    }


def _keep_ns(keep: durations.Duration | None) -> int:
    if keep is None:
        return 0
    return (
        model.TIME_NS_MAX
        if keep == durations.NEVER
        else durations.positive_nanoseconds(keep, "keep")
    )


def _dedup(changes: OptionChanges) -> dict[str, Any]:
    """Return the options for keys. A call without a key drops the task's options for keys, too."""
    values: dict[str, Any] = {}
    if "key" in changes and changes["key"] is None:
        values = {name: nothing for name, (_, nothing) in _DEDUP_FIELDS.items()}
    if "window" in changes:
        window = changes["window"]
        values["window_ns"] = (
            0 if window is None else durations.positive_nanoseconds(window, "window")
        )
    if "until" in changes:
        until: object = changes["until"]
        if until not in {None, "settled"}:
            raise errors.UsageError(f'until is {until!r:.60}, it must be "settled" or left out')
        values["until_settled"] = until is not None
    if "on_conflict" in changes:
        try:
            values["on_conflict"] = model.Conflict(changes["on_conflict"])
        except ValueError:
            raise errors.UsageError(
                f'on_conflict is {changes["on_conflict"]!r:.60}, it must be "first", "replace" '
                f'or "raise"'
            ) from None
    return values


def _storage(changes: OptionChanges) -> dict[str, Any]:
    if "compress" not in changes:
        return {}
    if changes["compress"] is not None:
        check_compression(changes["compress"])
    return {"compress": changes["compress"]}


class PutOptions(JobOptions, total=False):
    """Options of ``TaskLog.put`` besides the payload."""

    #: how often the job may be claimed; 0 for no limit
    attempts: int
    #: the job expires unless it ran by then: a duration, or a datetime with a time zone
    expires: durations.Duration | datetime | None
    #: one job at a time may hold this key in the queue
    key: str | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A job of ``put_many``, with the keywords of ``PutOptions``."""

    payload: bytes
    queue: str = "default"
    priority: int = model.PRIORITY_DEFAULT
    delay: durations.Duration = 0
    expires: durations.Duration | datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | bytes | None = None
    window: durations.Duration | None = None
    until: Until | None = None
    on_conflict: OnConflict = "first"
    attempts: int = model.ATTEMPTS_DEFAULT
    keep: durations.Duration | None = None
    compress: Compression | None = None


def make_put(payload: bytes, options: PutOptions) -> Put:
    if unknown := options.keys() - PutOptions.__annotations__.keys():
        raise no_option(min(unknown), PutOptions.__annotations__)
    return Put(payload=payload, **options)
