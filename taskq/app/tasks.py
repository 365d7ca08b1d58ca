"""Decorated functions: call them, or enqueue them."""

from __future__ import annotations

import functools
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import taskq._native as native
from taskq.calls import habits, naming, serialization
from taskq.calls.arguments import ArgumentCodec, StepArguments
from taskq.calls.call import (
    Call,
    JobOptions,
    OptionChanges,
    Options,
    check_unlimited,
    concurrency_key_bytes,
    key_bytes,
)
from taskq.calls.signature import BatchSignature, Signature
from taskq.connection import blocking, handle, tracing
from taskq.core import durations, errors, model, parsing, records
from taskq.core.exceptions import text_of
from taskq.core.retry import DEFAULT, RetryPolicy, policy_of
from taskq.core.values import TypedDict
from taskq.log.config import MAILBOX_MAX
from taskq.log.format.bodies import COMPRESSED_BYTES_MIN, Compression
from taskq.log.machine.inside import uninterrupted
from taskq.log.requests import Duplicate, Item, Plain

if TYPE_CHECKING:
    from taskq.app.app import TaskQ
    from taskq.conditions.base import Check, Condition
    from taskq.connection import connection
    from taskq.core import rates
    from taskq.flows.flow import Flow, Step
    from taskq.log.decide.listeners import DeadLetter

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Rest = ParamSpec("Rest")
S = TypeVar("S")
X = TypeVar("X")

RunsIn = Literal["thread", "process"]


class _Calls(Protocol[P, R_co]):
    """The type of a task for the type checker."""

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """See ``Enqueuer``."""

    @property
    def _step(self) -> Callable[..., Step[Any, R_co]]: ...


class StepMaker:
    """Descriptor of a task's ``step``.

    It is a descriptor because, of a generic method, the type checker would infer the first
    parameter's type from the receiver of the step.
    """

    def __get__(
        self, task: _Calls[typing.Concatenate[X, Rest], S], _: object = None
    ) -> Callable[Rest, Step[X, S]]:
        return task._step


class Enqueuer(typing.Generic[P, R]):
    """A task together with options: the base of ``enqueue`` and similar methods.

    Attributes:
        spec: the options that the log encodes once for many jobs.
    """

    #: ``step(...)``: a part of a flow; its first argument is the result of the part before it
    step: StepMaker = StepMaker()

    def __init__(self, task: Task[P, R], chosen: Options, flags: records.Flag) -> None:
        self._task = task
        self._connection = task.app._connection
        self._chosen = chosen
        self._flags = flags
        self._packing = self._connection.packer.packing(chosen)
        #: neither a key to compute nor a body to compress: the hot path
        self._is_plain = (
            chosen.key is None and self._packing is None and not callable(chosen.concurrency_key)
        )
        self._extras = chosen.extras(None, chosen.fixed_concurrency_key(task.name))
        self.spec: Final = chosen.spec(task.name, flags)
        #: attributes of the hot path in one tuple, since ``__getattr__`` makes an attribute access
        #: as slow as a call
        self._hot = (
            task, task.app, self._connection, self._is_plain, self.spec, self._extras,
            self._submit(),
        )  # fmt: skip

    if not TYPE_CHECKING:  # a type checker would accept any name otherwise

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names taskq's counterpart of another library's attribute."""
            task = self.__dict__.get("_task", self).__dict__.get("name", "task")
            raise habits.no_attribute(self, "a task", name, habits.TASKS, task.rpartition(".")[2])

    def options(self, **changes: Unpack[OptionChanges]) -> TaskOptions[P, R]:
        """Return the same task with other options, for one call or several.

        Raises:
            UsageError: an option is unknown, wrong, or contradicts another.
        """
        if self._task.limit is None:
            check_unlimited(self._task.name, changes)
        return TaskOptions(self._task, self._chosen.changed(changes), self._flags)

    def kind(self) -> tuple[Options, records.Flag]:
        """Return the options and flags of its jobs."""
        return self._chosen, self._flags

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a checked and encoded call, to enqueue later or with others.

        Raises:
            InvalidCall: the arguments do not fit the task's signature.
            PayloadTooLarge: they are over PAYLOAD_BYTES_MAX.
        """
        return self._made(args, kwargs)

    def _step(self, /, *args: Any, **kwargs: Any) -> Step[Any, R]:
        """See ``step``."""
        task, chosen = self._task, self._chosen
        if chosen.key is not None:
            raise errors.UsageError(
                f"{task.name}: a job of a flow takes no dedup key, for another job might hold it: "
                f"use {task.name}.options(key=None).step(...)"
            )
        if callable(chosen.concurrency_key):
            raise errors.UsageError(
                f"{task.name}: concurrency_key is made of the arguments, and a step's first one "
                f'comes later: use {task.name}.options(concurrency_key="text").step(...)'
            )
        codec = task.step_arguments
        body = codec.dump(codec.validated(args, kwargs))
        from taskq.flows.flow import Leaf, Step  # noqa: PLC0415 - most programs have no flow

        return Step(Leaf(self._call_of(body, self._extras), takes=True))

    def map(self, values: Iterable[Any]) -> Flow[list[R]]:
        """Group calls, one for each value; a tuple holds all arguments of a call.

        Raises:
            InvalidCall: a value does not fit; nothing was written.
        """
        from taskq.flows.flow import group  # noqa: PLC0415 - as above

        calls = (
            self._made(value if isinstance(value, tuple) else (value,), {}) for value in values
        )
        return group(calls)

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        return self._call_of(*self._encoded(args, kwargs))

    def _call_of(self, body: bytes, extras: model.Extras | None) -> Call[R]:
        return Call(
            name=self._task.name,
            task=self._task,
            body=body,
            flags=self._flags,
            chosen=self._chosen,
            spec=self.spec,
            extras=extras,
        )

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> handle.JobHandle[R]:
        """Put one job into the log; on return it is as durable as the app's settings ask for.

        If the caller is cancelled, the job is withdrawn unless it is written already.

        Raises:
            InvalidCall: the arguments do not fit; nothing was written.
            PayloadTooLarge: they are over PAYLOAD_BYTES_MAX; nothing was written.
            DuplicateKey: another job holds the key, and ``on_conflict`` is "raise".
            LogError: the log could not be opened or written.
        """
        task, app, connection, is_plain, spec, extras, submit = self._hot
        if tracing.is_on:
            return await app.enqueue(self.call(*args, **kwargs))
        if submit is not None:
            body = submit(connection, task, spec, MAILBOX_MAX, args, kwargs)
            if type(body) is tuple:  # the job is in the mailbox already
                body, store = body  # free the tuple, or the collector visits it while it waits
                lsn = await body
                job: handle.JobHandle[R] = native.plain.new_handle(
                    handle.JobHandle, app, task, store.tag, lsn
                )
                return job
        elif is_plain:
            body = task.encode(args, kwargs)
        else:
            spec, body, extras = await self._packed(args, kwargs)
        store = connection.current
        if store is None or not store.usable:
            store = await connection.opened()
            if connection.is_traced():  # is_traced has looked for a provider
                return await app.enqueue(self.call(*args, **kwargs))
        port = store.port()
        if port.full:
            await port.room()
        answer = await port.enqueue(spec, body, extras)
        if type(answer) is int:
            return handle.JobHandle(app, task, store.tag, answer)
        return handle.make_handle(app, task, store.tag, answer)

    def _submit(self) -> Callable[..., Any] | None:
        """Return the C function that puts these jobs into the mailbox; None if Python has to."""
        goes_plain = (
            self._is_plain and self._extras is None and self.spec.flags < records.PACKED_MIN
        )
        return native.plain.submit if native.is_on and goes_plain else None

    def enqueue_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> handle.JobHandle[R]:
        """Do as ``enqueue``, blocking this thread: for code without an event loop."""
        blocking.refuse_in_loop("enqueue_sync()", "await enqueue()")
        if self._connection.is_traced():
            return self._task.app.enqueue_sync(self.call(*args, **kwargs))
        body, extras = self._encoded(args, kwargs)
        item = (self.spec, body, extras)
        if self._packing is not None:
            item = self._connection.pack_sync((item, self._packing, self._what))
        answer = self._connection.send_sync(*item)
        return handle.make_handle(self._task.app, self._task, self._connection.tag, answer)

    async def enqueue_many(
        self, calls: Iterable[tuple[Any, ...]], *, atomic: bool = True
    ) -> list[handle.JobHandle[R]]:
        """Put one job for each tuple of arguments into the log: all of them or none.

        With ``atomic=False`` each shard of the app has a transaction of its own.

        Raises:
            InvalidCall: a tuple does not fit; nothing was written.
            PayloadTooLarge: together they are over TRANSACTION_BYTES_MAX; nothing was written.
            DuplicateKey: another job holds a key, and ``on_conflict`` is "raise"; nothing was
                written.
            LogError: the log could not be opened or written.
        """
        if self._connection.is_traced():
            return await self._task.app.enqueue_many(self._calls(calls), atomic=atomic)
        items = self._items(calls)
        if self._packing is not None and isinstance(items, list):
            items = await self._connection.pack_many(self._loose(items))
        return self._handles(await self._connection.send_many(items))

    def enqueue_many_sync(
        self, calls: Iterable[tuple[Any, ...]], *, atomic: bool = True
    ) -> list[handle.JobHandle[R]]:
        """Do as ``enqueue_many``, blocking this thread."""
        blocking.refuse_in_loop("enqueue_many_sync()", "await enqueue_many()")
        if self._connection.is_traced():
            return self._task.app.enqueue_many_sync(self._calls(calls), atomic=atomic)
        items = self._items(calls)
        if self._packing is not None and isinstance(items, list):
            items = self._connection.pack_many_sync(self._loose(items))
        return self._handles(self._connection.send_many_sync(items))

    def _handles(self, answers: list[int | Duplicate]) -> list[handle.JobHandle[R]]:
        task, tag = self._task, self._connection.tag
        app = task.app
        make = (
            functools.partial(native.plain.new_handle, handle.JobHandle)
            if native.is_on
            else handle.JobHandle
        )
        return [
            make(app, task, tag, answer)
            if type(answer) is int
            else handle.make_handle(app, task, tag, answer)
            for answer in answers
        ]

    def _items(self, calls: Iterable[tuple[Any, ...]]) -> list[Item] | Plain:
        if self._is_plain and self._extras is None:
            encode, checked = self._task.encode, self._checked
            # Another Python call would cost a tenth more.
            return Plain(
                self.spec,
                [encode(args if type(args) is tuple else checked(args), {}) for args in calls],
            )
        items: list[Item] = []
        for args in calls:
            body, extras = self._encoded(self._checked(args), {})
            items.append((self.spec, body, extras))
        return items

    def _calls(self, calls: Iterable[tuple[Any, ...]]) -> list[Call[R]]:
        return [self._made(self._checked(args), {}) for args in calls]

    def _checked(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(args, tuple):
            raise errors.UsageError(
                f"{self._task.name}: enqueue_many() takes a tuple of arguments for each job, "
                f"got {args!r:.60}: write ({args!r:.20},) for a single argument"
            )
        return args

    async def _packed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Item:
        body, extras = self._encoded(args, kwargs)
        item = (self.spec, body, extras)
        if self._packing is None or len(body) < COMPRESSED_BYTES_MIN:
            return item
        return await self._connection.pack((item, self._packing, self._what))

    def _loose(self, items: list[Item]) -> list[connection.Loose]:
        return [(item, self._packing, self._what) for item in items]

    @property
    def _what(self) -> str:
        return f"{self._task.name}: the payload"

    def _encoded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, model.Extras | None]:
        chosen = self._chosen
        key, other = chosen.key, chosen.concurrency_key
        if self._is_plain:
            return self._task.encode(args, kwargs), self._extras
        serialization.begin_writing()
        codec = self._task.arguments
        values = codec.validated(args, kwargs)
        body = codec.dump(values)
        if key is None and not callable(other):
            return body, self._extras
        name = self._task.name
        if callable(key):
            key = self._task._key_of(key, values)
        if callable(other):
            other = self._task._key_of(other, values, "concurrency_key")
        held = None if key is None else key_bytes(name, key)
        return body, chosen.extras(held, concurrency_key_bytes(name, other))


class TaskOptions(Enqueuer[P, R]):
    """A task with other options, returned by ``task.options(...)``."""

    def __repr__(self) -> str:
        return f"<TaskOptions of {self._task.name}>"


class Task(Enqueuer[P, R]):
    """A function that can be enqueued. Made by ``@app.task`` or ``@task``.

    Attributes:
        app: the TaskQ it belongs to.
        name: its name in jobs, ``module.function`` unless given.
        aliases: earlier names, whose jobs still run.
        fn: the function itself.
        origin: the place of its definition, and the run of the module that declared it.
        is_async: whether it is a coroutine function.
        may_await: whether it is a plain function that wraps an async one, and may return its
            coroutine.
        retry: the policy after a failed attempt.
        timeout: seconds that one attempt may take; None for no limit.
        soft_timeout: seconds until ``SoftTimeout`` is raised in a job; None for never.
        runs_in: "thread", "process", or "" for the event loop.
        store_result: whether its results are kept.
        requires: conditions that must hold before a job runs.
        while_running: whether a job is stopped and released when a condition is lost.
        limit: how many of its jobs run at a time, and start in a time.
        on_dead: called with each job of the task that dies in a worker of this app.
        encode: (args, kwargs) -> payload; raises InvalidCall.
        decode: payload -> (args, kwargs), checked against the annotations; raises InvalidCall.
    """

    def __init__(
        self,
        app: TaskQ,
        fn: Callable[P, Any],
        name: str,
        chosen: Options,
        *,
        retry: RetryPolicy,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        runs_in: RunsIn | None = None,
        aliases: tuple[str, ...] = (),
        store_result: bool = True,
        durable_claim: bool = False,
        on_dead: Callable[[DeadLetter], Any] | None = None,
    ) -> None:
        flags = records.Flag(0) if store_result else records.Flag.DROP_RESULT
        if durable_claim:
            flags |= records.Flag.DURABLE_CLAIM
        self.app = app
        self.name = name
        for spelled in (name, *aliases):
            parsing.check_name("task name", spelled)
        super().__init__(self, chosen, flags)
        self.fn = fn
        self.origin: naming.Origin = naming.origin_of(fn)
        self.aliases = aliases
        self.is_async: bool = naming.is_async(fn)
        self.may_await: bool = naming.may_await(fn)
        self.runs_in: str = runs_in or ("" if self.is_async else "thread")
        self.retry = retry
        self.timeout = timeout
        self.soft_timeout = soft_timeout
        self.store_result = store_result
        self.requires: tuple[Condition, ...] = ()
        self.while_running = False
        self.limit: rates.Limit | None = None
        #: most jobs of one call of the function, 0 for a call each; and the time to collect them
        self.batch: int = 0
        self.within_seconds: float = 0.0
        #: most bytes of an attempt's log lines that are kept with its outcome
        self.keep_log = 0
        self.on_dead = on_dead
        # Built at the first call: annotations may use names that the module defines later.
        self.encode: Callable[[tuple[Any, ...], dict[str, Any]], bytes] = self._first_encode
        self.decode: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]] = self._first_decode
        functools.update_wrapper(self, fn)

    def job(self, job: connection.JobId) -> handle.JobHandle[R]:
        """Return the handle of a job of this task, with its result type; see ``TaskQ.job``.

        Raises:
            InvalidJobId: the text is no job id.
            WrongLog: the id belongs to another log; raised at first use if the app is not open yet.
        """
        return self.app._handle(job, self)

    @property
    def queue(self) -> str:
        """Name of its jobs' queue."""
        return self._chosen.queue

    @functools.cached_property
    def signature(self) -> Signature:
        """Return the parameters of the function; in a batch task, the parameters of one job."""
        return (BatchSignature if self.batch else Signature)(self.name, self.fn)

    @functools.cached_property
    def arguments(self) -> ArgumentCodec:
        """The codec between calls and payloads.

        Raises:
            UsageError: an annotation has no form in JSON, or uses an undefined name.
        """
        codec = uninterrupted(ArgumentCodec)(self.signature)
        self.encode, self.decode = codec.encode, codec.decode
        return codec

    @functools.cached_property
    def step_arguments(self) -> StepArguments:
        """The codec for steps of flows, whose first argument is the result of another job.

        Raises:
            UsageError: as ``arguments``, or there is no first parameter.
        """
        return StepArguments(self.signature)

    @functools.cached_property
    def result_codec(self) -> serialization.ResultCodec:
        """Return the codec between returned values and stored results."""
        return serialization.ResultCodec(self.signature)

    @functools.cached_property
    def takes_anything(self) -> bool:
        """Return whether its first parameter accepts any value."""
        hint = self.signature.hints()[self.signature.names[0]]
        while hint is list or typing.get_origin(hint) is list:
            hint = next(iter(typing.get_args(hint)), Any)
        return hint is Any or hint is object

    @functools.cached_property
    def gives_json(self) -> bool:
        """Return whether its results are plain JSON values."""
        try:
            return self.result_codec.is_json
        except errors.UsageError:
            return True  # its workers report the error

    def encode_result(self, value: object) -> bytes | None:
        """Return a returned value as stored bytes; None for a None and for store_result=False.

        Raises:
            UsageError: the value does not fit the return annotation, or JSON, or is a coroutine.
            PayloadTooLarge: the result is over PAYLOAD_BYTES_MAX.
        """
        if self.store_result:
            return self.result_codec.encode(value)
        if isinstance(value, Awaitable):
            raise errors.UsageError(f"{self.name}: returned a {type(value).__name__}")
        return None

    def check(self) -> None:
        """Build the codecs of its jobs; a worker does this before its first job.

        Raises:
            UsageError: an annotation has no form in JSON, or uses an undefined name.
        """
        _ = self.arguments
        if self.store_result:
            _ = self.result_codec

    @property
    def packs_results(self) -> bool:
        """Return whether any of its results may be compressed."""
        chosen = self._chosen
        packs = chosen.compress not in {None, "none"}
        return self.store_result and (packs or not self._connection.config.is_plain)

    def result_packing(self, queue: str) -> Compression | None:
        """Return the compression of its jobs' results in this queue; None for none."""
        chosen = self._chosen
        return self._connection.config.packing(queue, chosen.compress)

    def decode_result(self, body: bytes) -> R:
        """Return the returned value in the type of the return annotation.

        Raises:
            UsageError: the code that wrote the result returned another type.
        """
        result: R = self.result_codec.decode(body)
        return result

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function in this thread."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def _first_encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        serialization.begin_writing()
        return self.arguments.encode(args, kwargs)

    def _first_decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.arguments.decode(payload)

    def _key_of(
        self, key: Callable[..., str | bytes], values: dict[str, Any], what: str = "key"
    ) -> str | bytes:
        args, kwargs = self.signature.arguments_for(key, values)
        try:
            return key(*args, **kwargs)
        except Exception as error:
            raise errors.UsageError(
                f"{self.name}: {what}= failed for this call: {type(error).__name__}: "
                f"{text_of(error)}. It is called with the task's own arguments, defaults filled in"
            ) from error


class BatchTask(Task[P, R]):
    """A task whose function is called for many jobs at once, with a list of their arguments."""

    def __call__(self, items: Any, /, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run the function now with a list of arguments; await the result if the task is async."""
        return self.fn(items, **kwargs)


class SyncTask(Task[P, R]):
    """A task of a plain function, which runs in a thread."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this thread."""
        value: R = self.fn(*args, **kwargs)
        return value


class AsyncTask(Task[P, R]):
    """A task of a coroutine function, which runs in the worker's event loop."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function; await the returned coroutine."""
        coroutine: Coroutine[Any, Any, R] = self.fn(*args, **kwargs)
        return coroutine


def no_call(given: object, args: tuple[object, ...], method: str) -> errors.UsageError:
    """Return the error of an ``enqueue`` without exactly one call, with the correct form.

    Args:
        given: the first argument.
        args: the further arguments.
        method: the method with its object, such as "app.enqueue".
    """
    words = ", ".join(f"{arg!r:.20}" for arg in args) or "..."
    wait = "await " if method == "app.enqueue" else ""
    if isinstance(given, Enqueuer):
        name = given._task.name.rpartition(".")[2]
        remedy = f"write {wait}{method}({name}.call({words}))"
        if method.startswith("app."):
            remedy += f", or {wait}{name}.{method.removeprefix('app.')}({words})"
    elif isinstance(given, str) and method.startswith("app."):
        by_name = method.replace("enqueue", "enqueue_by_name")
        remedy = f"write {wait}{by_name}({given!r:.60}, {words})"
    elif isinstance(given, Call):
        remedy = "give arguments to task.call(...), and options to call.options(...)"
    elif hasattr(given, "enqueue"):
        sync = "_sync" * method.endswith("_sync")
        remedy = f"write {'' if sync else 'await '}flow.enqueue{sync}() for a flow"
    elif isinstance(given, CoroutineType):
        given.close()
        remedy = f"{given.__name__}(...) runs the function: write {given.__name__}.call(...)"
    elif callable(given) and hasattr(given, "__name__"):
        name = given.__name__
        remedy = f"{name} is no task: decorate it with @app.task, and give {name}.call({words})"
    else:
        remedy = f"got {given!r:.60}"
    return errors.UsageError(f"{method}() takes one call, such as task.call(...): {remedy}")


def limit_of(name: str, choices: TaskChoices) -> rates.Limit | None:
    """Return the limit of ``@task(concurrency=, rate=)``; None without one."""
    concurrency = choices.get("concurrency")
    rate = choices.get("rate")
    if concurrency is None and rate is None:
        if choices.get("concurrency_key") is not None:
            raise errors.UsageError(
                f"{name}: concurrency_key is given without concurrency or rate: add one of them"
            )
        return None
    from taskq.core.rates import CONCURRENCY_MAX, Limit, rate_of  # noqa: PLC0415 - few have limits

    if concurrency is not None:
        concurrency = parsing.whole(concurrency, f"{name}: concurrency")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise errors.UsageError(
                f"{name}: concurrency is {concurrency}, it must be 1 to {CONCURRENCY_MAX}, or "
                f"left out for no limit"
            )
    return Limit(
        concurrency=concurrency or 0, rate=None if rate is None else rate_of(rate), scope=name
    )


class TaskChoices(JobOptions, total=False):
    """The keywords of ``@task(...)``; all may be left out."""

    #: name of the task in jobs; ``module.function`` unless given
    name: str
    #: earlier names, whose jobs still run
    aliases: tuple[str, ...] | list[str]
    #: a policy, or only the number of attempts
    retry: RetryPolicy | int
    #: called with each ``DeadLetter`` of its jobs that a worker of the app makes; may be async. The
    #: job of a task given here is written in one frame with the death
    on_dead: Callable[[DeadLetter], Any] | None
    #: how long one attempt may take; then an async function is cancelled, a process killed, and a
    #: thread, which cannot be stopped, abandoned
    timeout: durations.Duration | None
    #: when ``SoftTimeout`` is raised in the task, so that it can clean up and end
    soft_timeout: durations.Duration | None
    #: makes a dedup key from the task's arguments
    key: Callable[..., str | bytes] | None
    #: the job expires unless a worker claims it within this time of its enqueue
    expires: durations.Duration | None
    #: False: do not store results
    store_result: bool
    #: how many of its jobs run at a time, in all processes on the log; None for no limit
    concurrency: int | None
    #: computes a key from the task's arguments; ``concurrency`` and ``rate`` apply to each key
    concurrency_key: Callable[..., str | bytes] | None
    #: how many of its jobs start in a time, in all processes: "10/s", "100/min", "5/30s"
    rate: str | None
    #: "thread" or "process"; None: sync functions in a thread, async ones in the event loop
    runs_in: RunsIn | None
    #: keep the last log lines of an attempt with its outcome, up to this size: "64KB" at most
    keep_log: parsing.Size | None
    #: run only once the claim is on disk, so that a power loss cannot make it run twice
    durable_claim: bool
    #: conditions that must hold before a job runs, see ``taskq.conditions``; the job waits for them
    requires: Sequence[Condition | Check]
    #: with ``requires``: a running job is stopped and waits again when a condition is lost
    while_running: bool


class _BatchSize(TypedDict, total=True):
    """See ``BatchChoices``."""

    #: the most jobs of one call of the function, which gets a list of their arguments
    batch: int


class BatchChoices(_BatchSize, TaskChoices, total=False):
    """The keywords of ``@task(batch=...)``."""

    #: how long the first job waits for others; a second unless given
    within: durations.Duration


def with_choices(text: str | None) -> str:
    """Return a docstring with the keywords of ``@task(...)`` appended, for ``help``."""
    names = (f"            {name}: {hint}" for name, hint in TaskChoices.__annotations__.items())
    head = f"{(text or '').rstrip()}\n\n        Keywords, all of which may be left out:"
    return "\n".join([head, *names])


class TaskDecorator(Protocol):
    """``@app.task(...)`` with its keywords, before the function is known."""

    # The overloads overlap on purpose: the first match is the more exact type.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


class BatchDecorator(Protocol):
    """``@app.task(batch=...)`` with its keywords, before the function is known."""

    # As above.
    @overload
    def __call__(
        self, fn: Callable[[list[X]], Coroutine[Any, Any, None]], /
    ) -> BatchTask[[X], None]: ...

    @overload
    def __call__(
        self, fn: Callable[[list[X]], Coroutine[Any, Any, list[S]]], /
    ) -> BatchTask[[X], S]: ...

    @overload
    def __call__(
        self, fn: Callable[[list[X]], Coroutine[Any, Any, list[S] | None]], /
    ) -> BatchTask[[X], S | None]: ...

    @overload
    def __call__(self, fn: Callable[[list[X]], None], /) -> BatchTask[[X], None]: ...

    @overload
    def __call__(self, fn: Callable[[list[X]], list[S]], /) -> BatchTask[[X], S]: ...


def make_task(app: TaskQ, fn: Callable[..., Any], choices: TaskChoices) -> Task[..., Any]:
    """Return the function as a task that is not registered yet."""
    naming.check_function(fn)
    _check_choices(fn, choices)
    policy = policy_of(choices["retry"]) if "retry" in choices else DEFAULT
    timeout, soft = (_limit(choices, name) for name in ("timeout", "soft_timeout"))
    if timeout is not None and soft is not None and soft >= timeout:
        raise errors.UsageError(
            f"soft_timeout is {soft:g} s and timeout {timeout:g} s: the soft one must be shorter"
        )
    changes = {k: v for k, v in choices.items() if k in OptionChanges.__annotations__}
    kind = BatchTask if "batch" in choices else AsyncTask if naming.is_async(fn) else SyncTask
    task: Task[..., Any] = kind(
        app,
        fn,
        choices["name"] if choices.get("name") is not None else naming.name_of(fn),
        Options(attempts=policy.attempts).changed(cast("OptionChanges", changes)),
        retry=policy,
        timeout=timeout,
        soft_timeout=soft,
        runs_in=choices.get("runs_in"),
        aliases=tuple(choices.get("aliases", ())),
        store_result=choices.get("store_result", True),
        durable_claim=choices.get("durable_claim", False),
        on_dead=choices.get("on_dead"),
    )
    if "batch" in choices or "within" in choices:
        _set_batch(task, choices)
    _check_signature(task)
    task.limit = limit_of(task.name, choices)
    task.keep_log = _keep_log(task.name, choices)
    task.requires = _requires(task.name, choices)
    task.while_running = choices.get("while_running", False)
    if task.while_running:
        _check_while_running(task)
    return task


#: Most jobs of one call.
_BATCH_MAX: Final = 10_000
_WITHIN_SECONDS: Final = 1.0


def _set_batch(task: Task[..., Any], choices: TaskChoices) -> None:
    given: dict[str, Any] = {**choices}
    size = parsing.whole(given.get("batch", 0), f"{task.name}: batch")
    if not 1 <= size <= _BATCH_MAX:
        raise errors.UsageError(
            f"{task.name}: batch is {size}, it must be 1 to {_BATCH_MAX}, and within= needs it"
        )
    limit = given.get("concurrency")
    if limit is not None and limit < size:
        raise errors.UsageError(
            f"{task.name}: concurrency is {limit} and counts jobs, of which a batch has {size}: "
            f"give at least that, or leave it out"
        )
    for name in ("keep_log", "while_running"):
        if given.get(name):
            raise errors.UsageError(
                f"{task.name}: {name} is of one job, and does not go with batch"
            )
    task.batch = size
    task.within_seconds = durations.seconds(given.get("within", _WITHIN_SECONDS), "within")


def _check_signature(task: Task[..., Any]) -> None:
    """Refuse parameters and results that no job could have; workers check the doubtful cases."""
    try:
        signature = (BatchSignature if task.batch else Signature)(task.name, task.fn)
    except errors.UsageError:
        raise
    except ValueError:  # some built-in functions have none
        return
    if signature.check(with_result=task.store_result):
        task.signature = signature


def _requires(name: str, choices: TaskChoices) -> tuple[Condition, ...]:
    if "requires" not in choices:
        return ()
    from taskq.conditions.base import checked_conditions  # noqa: PLC0415 - few tasks wait for any

    return checked_conditions(name, choices["requires"])


def _keep_log(name: str, choices: TaskChoices) -> int:
    given = choices.get("keep_log")
    size = 0 if given is None else parsing.size_bytes(given, f"{name}: keep_log")
    if size > model.LINES_BYTES_MAX:
        raise errors.UsageError(f'{name}: keep_log is {given!r}, it must be at most "64KiB"')
    return size


def _check_while_running(task: Task[..., Any]) -> None:
    if not task.requires:
        raise errors.UsageError(
            f"{task.name}: while_running=True needs requires=[...]: it stops a job when one of "
            f"these is lost"
        )
    if task.runs_in == "thread":
        raise errors.UsageError(
            f"{task.name}: while_running=True cannot stop a function that runs in a thread: "
            f'make it async, or give it runs_in="process"'
        )


def _check_choices(fn: Callable[..., Any], choices: TaskChoices) -> None:
    known = {**TaskChoices.__annotations__, "batch": "", "within": ""}
    unknown = choices.keys() - known.keys()
    if unknown:
        name = min(unknown)
        raise errors.UsageError(
            f"@task has no option {name!r}: {habits.option_instead(name, known)}"
        )
    key = choices.get("key")
    on_dead: object = choices.get("on_dead")
    aliases: object = choices.get("aliases", ())
    if key is not None and not callable(key):
        raise errors.UsageError(
            f"key is {key!r:.60}: give a function of the task's arguments, "
            f"or a fixed key with .options(key=...)"
        )
    limited_by = choices.get("concurrency_key")
    if limited_by is not None and not callable(limited_by):
        raise errors.UsageError(
            f"concurrency_key is {limited_by!r:.60}: give a function of the task's arguments, "
            f"or a fixed key with .options(concurrency_key=...)"
        )
    if on_dead is not None and not callable(on_dead):
        raise errors.UsageError(
            f"on_dead is {on_dead!r:.60}: give a function or a task of the DeadLetter"
        )
    if isinstance(aliases, str):
        raise errors.UsageError(f"aliases is {aliases!r}: give a list of names")
    runs_in = choices.get("runs_in")
    if runs_in not in {None, "thread", "process"}:
        raise errors.UsageError(
            f'runs_in is {runs_in!r}, it must be "thread", "process" or left out'
        )
    if runs_in == "process":
        naming.check_importable(fn)


def _limit(choices: TaskChoices, name: Literal["timeout", "soft_timeout"]) -> float | None:
    value = choices.get(name)
    return None if value is None else durations.positive_nanoseconds(value, name) / model.SECOND_NS


def tasks_with(tasks: dict[str, Task[..., Any]], task: Task[..., Any]) -> dict[str, Task[..., Any]]:
    """Return the tasks of an app by all their names, with a task added or replaced."""
    names = (task.name, *task.aliases)
    replaced: list[Task[..., Any]] = []
    for name in names:
        taken = tasks.get(name)
        if taken is None:
            continue
        if not (task.origin.is_line_of(taken.origin) or task.origin.is_rerun_of(taken.origin)):
            raise errors.UsageError(
                f"the task name {name!r} is taken by {taken.fn.__module__}."
                f"{taken.fn.__qualname__}: give one of the two another with name="
            )
        replaced.append(taken)
    # Jobs may wait under a name that the new form of the task has dropped.
    renewed = [name for name, known in tasks.items() if known in replaced]
    return tasks | dict.fromkeys((*renewed, *names), task)
