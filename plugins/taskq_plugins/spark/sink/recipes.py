"""What stands before a payload in its record, made once for all rows that say the same.

A recipe is what an ordinary enqueue makes of its options; its tails are those of ``taskq.log``, so
that a job from a data frame is the same to the byte. Spans of time, such as a delay, count from the
publication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskq.connection.uploads import compress, encode_tail
from taskq.engine import Flag
from taskq.errors import PayloadTooLarge, UnknownTask
from taskq.hooks import Options, key_bytes
from taskq.values import PAYLOAD_BYTES_MAX
from taskq_plugins.spark.sink.options import KEY_OPTIONS, SinkOptions

if TYPE_CHECKING:
    from taskq import Call, Task, TaskQ
    from taskq.engine import Extras
    from taskq.hooks import Enqueuer, OptionChanges

#: Recipes that are kept, and shapes of keys in each of them.
RECIPES_MAX: Final = 4_096
_KEY_SIZES_MAX: Final = 256
_SHOWN_TASKS_MAX: Final = 10
#: Stands where a key will, until a row tells it.
_SOME_KEY: Final = "k"


class Row(NamedTuple):
    """What a row says of its job beside arguments and key; None: nothing."""

    task: str | None = None
    queue: str | None = None
    priority: int | None = None
    attempts: int | None = None
    window: Any = None
    delay: Any = None
    eta: Any = None
    expires: Any = None
    headers: tuple[tuple[str, str], ...] | None = None

    def changes(self) -> OptionChanges:
        changes: dict[str, Any] = {
            name: value
            for name, value in self._asdict().items()
            if value is not None and name not in {"task", "window"}
        }
        if self.headers is not None:
            changes["headers"] = dict(self.headers)
        return changes  # type: ignore[return-value]


class Recipe:
    """How jobs of one kind are enqueued.

    Attributes:
        task: its name, "" for none.
        known: the task, None where it is not known here.
        is_plain: whether the rows' payloads are stored as they are given.
    """

    def __init__(
        self,
        task: str,
        chosen: Options,
        flags: Flag,
        known: Task[..., Any] | None = None,
        enqueuer: Enqueuer[..., Any] | None = None,
    ) -> None:
        self.task = task
        self.known = known
        self._enqueuer = enqueuer
        self._chosen = chosen
        self._spec = chosen.spec(task, flags)
        self._compression = chosen.compress or "none"
        self.is_plain = self._compression == "none"
        self._shapes: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        #: before payloads without a key
        self.tail = self._tail_of(chosen.extras(None), 0)

    def keyed_tail(self, key: object, stored_flags: int = 0) -> bytes:
        """Before a payload whose job has this key.

        Raises:
            UsageError: it is no text or bytes, or too long.
        """
        encoded = key if type(key) is bytes else key_bytes(self.task or "a job", key)
        halves = self._shapes.get((stored_flags, len(encoded)))
        if halves is None:
            key_bytes(self.task or "a job", encoded)
            if len(self._shapes) >= _KEY_SIZES_MAX:
                self._shapes.clear()
            halves = self._halves(stored_flags, len(encoded))
            self._shapes[stored_flags, len(encoded)] = halves
        return encoded.join(halves)

    def call(self, given: bytes | dict[str, Any]) -> Call[Any]:
        """Return the checked call of a task that is known here, from its arguments or its payload.

        Raises:
            InvalidCall: they do not fit.
        """
        assert self.known is not None
        assert self._enqueuer is not None
        if isinstance(given, bytes):
            args, kwargs = self.known.decode(given)
            return self._enqueuer.call(*args, **kwargs)
        return self._enqueuer.call(**given)

    def entry(self, body: bytes, key: object, own: Extras | None = None) -> tuple[bytes, bytes]:
        """Return (tail, payload as stored) of a job; ``own`` stands when the row has no key.

        Raises:
            UsageError: the key is none.
            PayloadTooLarge: the payload is over its limit.
        """
        check_payload(self.task, len(body))
        stored, flags = compress(body, self._compression)
        if key is not None:
            return self.keyed_tail(key, flags), stored
        if own is not None:
            return self._tail_of(own, flags), stored
        return (self._tail_of(self._chosen.extras(None), flags) if flags else self.tail), stored

    def _tail_of(self, extras: Extras | None, stored_flags: int) -> bytes:
        return encode_tail(self._spec.packed(stored_flags), extras)

    def _halves(self, stored_flags: int, size: int) -> tuple[bytes, bytes]:
        low, high = (
            self._tail_of(self._chosen.extras(filler * size), stored_flags)
            for filler in (b"\x00", b"\xff")
        )
        at = next(at for at, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
        return low[:at], low[at + size :]


class Recipes:
    """The recipes of one data frame.

    Args:
        options: what stands for all rows.
        app: whose tasks give defaults and check arguments, if any.
        names: fields of ``Row`` that columns tell; rows are given as tuples of their values.
    """

    def __init__(self, options: SinkOptions, app: TaskQ | None, names: Sequence[str]) -> None:
        self._options = options
        self._app = app
        self._names = names
        #: by what rows say, without a key and with one
        self._made: tuple[dict[tuple[Any, ...], Recipe], dict[tuple[Any, ...], Recipe]] = {}, {}

    def of(self, row: tuple[Any, ...], *, has_key: bool) -> Recipe:
        """Return the recipe of a row.

        Raises:
            UsageError: something that it says is wrong.
            UnknownTask: the app has no task of the name.
        """
        made = self._made[has_key]
        recipe = made.get(row)
        if recipe is None:
            if len(made) >= RECIPES_MAX:
                made.clear()
            said = Row(**dict(zip(self._names, row, strict=True)))
            recipe = made[row] = self._make(said, has_key=has_key)
        return recipe

    def each(self, rows: Iterable[tuple[Any, ...]], keys: list[Any] | None) -> list[Recipe]:
        if keys is None:
            get = self._made[False].get
            return [get(row) or self.of(row, has_key=False) for row in rows]
        return [
            self._made[key is not None].get(row) or self.of(row, has_key=key is not None)
            for row, key in zip(rows, keys, strict=False)
        ]

    def _make(self, row: Row, *, has_key: bool) -> Recipe:
        task = self._options.task if row.task is None else row.task
        changes: OptionChanges = {**self._options.changes, **row.changes()}
        if "delay" in changes and "eta" in changes:
            del changes["delay"]  # the row's own moment, against the delay of all rows
        if row.window is not None:
            changes["window"] = row.window
        if has_key:
            changes["key"] = _SOME_KEY
        known = None if self._app is None or not task else self._app.tasks.get(task)
        if self._app is not None and known is None and task:
            raise UnknownTask(
                f"app {self._options.app!r} has no task {task!r}: it has "
                f"{', '.join(sorted(self._app.tasks)[:_SHOWN_TASKS_MAX]) or 'none'}"
            )
        chosen = Options() if known is None else known.kind()[0]
        if not has_key and chosen.key is None:
            # How long a key is held says nothing of a row that has none.
            for name in KEY_OPTIONS & changes.keys():
                del changes[name]  # type: ignore[misc]
        if known is None:
            return Recipe(task, chosen.changed(changes), Flag(0))
        enqueuer = known.options(**changes)
        return Recipe(task, *enqueuer.kind(), known, enqueuer)


def check_payload(task: str, size: int) -> None:
    """Refuse a payload that is too large for a record.

    Raises:
        PayloadTooLarge: it is.
    """
    if size > PAYLOAD_BYTES_MAX:
        remedy = "put the data into a file and pass its path"
        raise PayloadTooLarge(f"{task or 'a job'}: the payload", size, PAYLOAD_BYTES_MAX, remedy)
