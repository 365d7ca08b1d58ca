"""Encode results as JSON, and helpers shared with arguments."""

from __future__ import annotations

import contextlib
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Reversible
from enum import Enum
from functools import cache, lru_cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

from taskq._lazy import import_without_types
from taskq.calls import loose, naming
from taskq.calls.signature import REST, Signature
from taskq.core import errors, model, parsing
from taskq.log.format.bodies import check_size
from taskq.log.machine.inside import uninterrupted

if TYPE_CHECKING:
    from pydantic import ConfigDict
    from pydantic_core import SchemaSerializer, SchemaValidator
    from pydantic_core.core_schema import CoreConfig, CoreSchema

    from taskq.calls import equality


#: Types that need only pydantic_core, and their names in it.
_PLAIN: Final[dict[object, str]] = {
    str: "str", int: "int", float: "float", bool: "bool", Any: "any",
    None: "none", NoneType: "none",
}  # fmt: skip
_OPTIONAL_PARTS: Final = 2
_ROOT: Final[CoreConfig] = {
    "ser_json_bytes": "base64", "val_json_bytes": "base64", "ser_json_inf_nan": "strings",
}  # fmt: skip
#: Types whose values pydantic can iterate only once, or not at all.
_ITERABLES: Final = (Iterable, Collection, Container, Reversible)
#: Shorter JSON cannot be nested too deeply.
FLAT_BYTES_MAX: Final = 2 * parsing.VALUE_DEPTH_MAX
#: Longer whole numbers can be written, but not read.
_DIGITS_MAX: Final = 4_300
_ROOM: Final = parsing.DEPTH_MAX - parsing.VALUE_DEPTH_MAX


@cache
@uninterrupted
def begin_writing() -> None:
    """Let pydantic_core import its modules, which it does in a lock at the first write."""
    from pydantic_core import to_json  # noqa: PLC0415 - see the module's docstring

    to_json(None)


def is_deep(body: bytes, around: int = 0) -> bool:
    """Return whether JSON from this process is nested deeper than VALUE_DEPTH_MAX.

    Args:
        body: a value, or an object of values.
        around: 1 for an object of values.
    """
    brackets = body.count(b"[") + body.count(b"{")
    if len(body) <= FLAT_BYTES_MAX or brackets <= parsing.VALUE_DEPTH_MAX:
        return False
    room = _ROOM - around
    return not _is_json(b"[" * room + body + b"]" * room)


def has_long_number(body: bytes) -> bool:
    """Return whether JSON from this process contains a whole number too long to read."""
    # A number of this length covers at least one of these places.
    places = body[_DIGITS_MAX - 1 :: _DIGITS_MAX]
    return any(0x30 <= digit <= 0x39 for digit in places) and not _is_json(body)  # noqa: PLR2004


def _is_json(body: bytes, *, allow_inf_nan: bool = True) -> bool:
    from pydantic_core import from_json  # noqa: PLC0415 - see the module's docstring

    try:
        from_json(body, allow_inf_nan=allow_inf_nan)
    except ValueError:
        return False
    return True


def json_config() -> ConfigDict:
    return {
        "extra": "forbid",
        "ser_json_bytes": "base64",
        "val_json_bytes": "base64",
        "ser_json_inf_nan": "strings",
    }


def compiled(
    annotation: Any, config: ConfigDict | None = None
) -> tuple[SchemaValidator, SchemaSerializer]:
    """Return a validator and a serializer for one type."""
    return made(schema_of(annotation, config))


def schema_of(annotation: Any, config: ConfigDict | None = None) -> CoreSchema:
    """Return pydantic_core's schema of one type."""
    schema = plain_schema(annotation)
    if schema is not None:
        return schema
    with real_dates():
        from pydantic import TypeAdapter  # noqa: PLC0415 - see the module's docstring
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
        from pydantic_core import SchemaError  # noqa: PLC0415

        try:
            schema = TypeAdapter(readable(annotation), config=config).core_schema
        except (PydanticUserError, SchemaError) as error:
            raise TypeError(cause_of(error)) from error
    return cast("CoreSchema", _without_computed(schema))


def _without_computed(part: Any) -> Any:
    """Return a schema without the dataclass fields that only ``__post_init__`` sets."""
    if isinstance(part, list):
        made = [_without_computed(item) for item in part]
        return part if all(map(operator.is_, made, part)) else made
    if not isinstance(part, dict):
        return part
    changed = {key: _without_computed(value) for key, value in part.items() if key != "metadata"}
    if part.get("type") == "dataclass-field" and part.get("init") is False:
        return {**part, **changed, "serialization_exclude": True}
    return {**part, **changed} if any(part[k] is not v for k, v in changed.items()) else part


def readable(annotation: Any) -> Any:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in _ITERABLES or origin in _ITERABLES:
        from pydantic import BeforeValidator  # noqa: PLC0415 - as above

        inner = readable(parts[0]) if parts else Any
        return Annotated[list[inner], BeforeValidator(_listed)]  # type: ignore[valid-type]
    if origin is None or origin is Literal or not parts:
        return annotation
    changed = tuple(map(readable, parts))
    if all(map(operator.is_, changed, parts)):
        return annotation
    if origin is UnionType:
        return cast("Any", Union)[changed]
    if origin is Annotated:
        return Annotated.__class_getitem__((changed[0], *annotation.__metadata__))
    return origin[changed]


def _listed(value: Any) -> Any:
    if isinstance(value, list) or hasattr(value, "__next__"):
        return value
    raise ValueError(f"a {type(value).__name__} would come back as a list: pass list(…) of it")


class JsonForm:
    """Converts values of one type to JSON and back.

    Fields are written by name. They are read by alias as well, because other senders use aliases.

    Args:
        validator: pydantic_core's validator of the type.
        serializer: its serializer.
        is_kept: whether the type guarantees that values are read back unchanged.
    """

    def __init__(
        self, validator: SchemaValidator, serializer: SchemaSerializer, *, is_kept: bool
    ) -> None:
        self.is_kept = is_kept
        self.read: Callable[[bytes], Any] = validator.validate_json
        self.write: Callable[..., bytes] = serializer.to_json
        if not is_kept:
            self.read = partial(validator.validate_json, by_alias=True, by_name=True)
            self.write = partial(serializer.to_json, by_alias=False, round_trip=True)
            self._brief = partial(self.write, exclude_unset=True)
            from taskq.calls.equality import find_difference  # noqa: PLC0415 - few types need it

            self._find = find_difference

    def brief(self, value: object) -> bytes | None:
        """Return JSON without unset fields of models; None if another value is read from it.

        This is so if the reader needs the field, such as the tag of a union. In the copy the same
        fields are unset.
        """
        try:
            body = self._brief(value, warnings=False)
            is_same = len(body) <= model.PAYLOAD_BYTES_MAX and not self.difference(value, body)
        except ValueError:
            return None
        return body if is_same else None

    def difference(self, value: object, body: bytes) -> equality.Difference | None:
        """Return where the value read from the body differs from this value; None if equal."""
        # A model's own configuration may write NaN and infinity as bare words.
        if (b"NaN" in body or b"Infinity" in body) and not _is_json(body, allow_inf_nan=False):
            raise ValueError('no JSON: give its model ConfigDict(ser_json_inf_nan="strings")')
        return self._find(value, self.read(body))

    def problem(self, value: object, body: bytes) -> str:
        try:
            difference = self.difference(value, body)
        except ValueError as error:
            return unread_text(cause_of(error))
        return "" if difference is None else difference_text(difference, difference.path)


#: Advice for a value that is nested too deeply.
FLATTER: Final = "nobody reads that, so pass a flatter value, or its text"
_READABLE: Final = (
    "annotate a type that JSON brings back, such as text, numbers, lists, dicts with text as keys, "
    "or a model of them"
)


_CHANGED: Final = (
    "its type does not bring that back (exclude=True, an attribute that is private or no field, an "
    "alias that is another field's name, or a validator or __post_init__ that runs again): change "
    "the type, or pass plain values"
)


def unread_text(cause: str) -> str:
    """Return the fault of a written value that cannot be read back, and the remedy."""
    return f"cannot be read back from JSON ({cause}): correct the value, or {_READABLE}"


def unwritten_text(error: ValueError) -> str:
    remedy = _READABLE
    if "surrogates" in str(error):
        remedy = "for a file's name annotate bytes, and pass os.fsencode(…) of it"
    elif "utf-8" in str(error):
        remedy = 'give its model ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")'
    return f"cannot be written as JSON ({cause_of(error)}): {remedy}"


def difference_text(difference: equality.Difference, path: tuple[object, ...]) -> str:
    """Return the fault of a value that is read back as another value, and the remedy."""
    written, read = difference.written, difference.read
    holds = f"holds {shown(written)}{_at(path)}, which would come back as "
    if type(read) is object:
        return f"holds {shown(written)}{_at(path)}, which would be lost: {_CHANGED}"
    if type(written) is type(read):
        remedy = _CHANGED if path else _READABLE
        if hasattr(written, "get_secret_value"):
            remedy = "pass str if it may stand in the log, or a name by which the task finds it"
        return f"{holds}another {shown(read)}: {remedy}"
    if isinstance(written, type(read)):
        return f"{holds}{shown(read)}: annotate {shown(written)}, or a union with it"
    return f"{holds}{shown(read)}: {_READABLE}"


def loss_text(lost: equality.Difference, path: tuple[object, ...]) -> str:
    if isinstance(lost.written, dict):
        return f"holds keys{_at(path)} that become one: give each entry a key of the annotated type"
    return f"holds a whole number{_at(path)} that no float holds: annotate int"


def _at(path: tuple[object, ...]) -> str:
    place = "".join(f"[{name!r:.60}]" for name in path)
    return f" at {place}" if place else ""


def compiled_fields(fields: Mapping[str, Any]) -> tuple[SchemaValidator, SchemaSerializer] | None:
    """Compile a dict of plain values by their types; None if a value is not plain."""
    checked: dict[str, CoreSchema] = {}
    for name, hint in fields.items():
        may_miss = get_origin(hint) is typing.NotRequired
        schema = plain_schema(get_args(hint)[0] if may_miss else hint)
        if schema is None:
            return None
        checked[name] = {
            "type": "typed-dict-field", "schema": schema, "required": not may_miss,
        }  # fmt: skip
    config = {"extra_fields_behavior": "forbid", **_ROOT}
    whole = {
        "type": "typed-dict", "cls_name": "Arguments", "fields": checked,
        "extra_behavior": "forbid", "config": config,
    }  # fmt: skip
    return made(cast("CoreSchema", whole))


@contextlib.contextmanager
def real_dates() -> Iterator[None]:
    """Show pydantic the real date types, also in a test where freezegun has replaced them.

    A type is compiled once, and would keep the replaced types for ever.
    """
    freezer = sys.modules.get("freezegun.api")
    dates: Any = sys.modules["datetime"]
    if freezer is None or dates.datetime is not freezer.FakeDatetime:
        yield
        return
    from pydantic_core import core_schema  # noqa: PLC0415 - see the module's docstring

    for fake, make in (
        (freezer.FakeDatetime, core_schema.datetime_schema),
        (freezer.FakeDate, core_schema.date_schema),
    ):
        fake.__get_pydantic_core_schema__ = lambda *_, make=make: make()
    dates.datetime, dates.date = freezer.real_datetime, freezer.real_date
    try:
        yield
    finally:
        dates.datetime, dates.date = freezer.FakeDatetime, freezer.FakeDate


def plain_schema(annotation: object) -> CoreSchema | None:
    try:
        kind = _PLAIN.get(annotation)
    except TypeError:  # not hashable
        return None
    if kind is not None:
        return cast("CoreSchema", {"type": kind})
    parts = get_args(annotation)
    if get_origin(annotation) not in {Union, UnionType} or len(parts) != _OPTIONAL_PARTS:
        return None
    inner = plain_schema(parts[0])
    if inner is None or parts[1] is not NoneType:
        return None
    return cast("CoreSchema", {"type": "nullable", "schema": inner})


def import_core() -> None:
    """Import pydantic_core without its types for checkers, which take most of the import time."""
    import_without_types("pydantic_core", "core_schema")


def made(schema: CoreSchema) -> tuple[SchemaValidator, SchemaSerializer]:
    import_core()
    from pydantic_core import SchemaSerializer, SchemaValidator  # noqa: PLC0415

    # Given at the root, too: the config of a typed dict does not apply to its floats.
    return SchemaValidator(schema, _ROOT), SchemaSerializer(schema, _ROOT)


def looks_into(annotation: Any, config: ConfigDict | None = None) -> loose.Look | None:
    """Return a function that finds parts of any type in a value that JSON would change."""
    return loose.look_for(schema_of(annotation, config))


def can_be_read(kind: type) -> bool:
    try:
        return looks_into(kind) is not loose.find_changed
    except Exception:  # noqa: BLE001 - pydantic knows many reasons
        return False


def unusable(task: str, hints: Mapping[str, Any], error: TypeError) -> errors.UsageError:
    for name, hint in hints.items():
        try:
            naming.check_hint(task, name if name == "the result" else f"parameter {name!r}", hint)
        except errors.UsageError as problem:
            return problem
        try:
            compiled(hint)
        except TypeError as cause:
            # The type is inside a dataclass, which only pydantic inspects.
            known = f" ({cause})" if "typing_extensions" in str(cause) else ""
            return errors.UsageError(
                f"{task}: the annotation {inspect.formatannotation(hint)} of {name!r} has no form "
                f"in JSON{known}: use a built-in type, a dataclass or a pydantic model"
            )
    return errors.UsageError(f"{task}: the annotations cannot be used: {error}")


def load_checks(signatures: Iterable[Signature]) -> None:
    """Import the validators for calls of these tasks: up to 0.1 s that no first call waits for."""
    import_core()
    for signature in signatures:
        try:
            plain = compiled_fields(signature.hints())
        except Exception:  # noqa: BLE001, S112 - told at its first call
            continue
        if plain is None:
            import pydantic.type_adapter  # noqa: F401, PLC0415 - as above

            return


_SCALARS: Final = (bool, float, int, str)
_KINDS_KEPT: Final = 256


class ResultCodec:
    """Encodes results of one function as bytes, and decodes them.

    A None is encoded as no bytes at all.

    The codec is made at the task's first use, since pydantic is slow to import and annotations may
    use names that are defined later. Bytes are base64 and infinite floats are strings at every
    depth, except inside pydantic models, which have a configuration of their own.
    """

    def __init__(self, signature: Signature) -> None:
        self._task = signature.task
        annotation = signature.result_hint()
        self._text = inspect.formatannotation(annotation)
        try:
            plain, _ = compiled(annotation)
            # pydantic accepts a configuration for an optional dataclass, but not for a bare one.
            schema = schema_of(_optional(annotation), json_config())
            self._validator, serializer = made(schema)
        except TypeError as error:
            raise unusable(self._task, {"the result": annotation}, error) from error
        part = _never_read(annotation)
        if part:
            raise errors.UsageError(
                f"{self._task}: no {part} comes back from JSON, so -> {self._text} is no result: "
                f"{_READABLE}"
            )
        self._takes_none = _takes_none(plain)
        self._look = loose.look_for(schema)
        self._way = JsonForm(
            self._validator, serializer, is_kept=loose.is_kept(schema, floats=False)
        )
        #: whether values are plain JSON, readable without the type
        self.is_json: bool = loose.is_json(schema)
        #: type whose values always fit: a warning of pydantic costs ten times the encoding
        self._scalar = next((kind for kind in _SCALARS if schema == _scalar_schema(kind)), None)

    def encode(self, value: object) -> bytes | None:
        """Return the result as JSON, or None for a None."""
        if value is None:
            if self._takes_none:
                return None
            raise errors.UsageError(
                f"{self._task}: returned None, but is annotated to return {self._text}"
            )
        if type(value) is self._scalar:
            body = self._written(value)
        else:
            if self._look is not None and type(value) not in loose.KEPT:
                self._refuse_changed(value)
            body = self._compared(value)
        if len(body) > FLAT_BYTES_MAX:
            problem = large_problem(body)
            if problem:
                raise errors.UsageError(f"{self._task}: the returned value {problem}")
        check_size(f"{self._task}: the result", body)
        return body

    def _written(self, value: object) -> bytes:
        try:
            return self._way.write(value)
        except ValueError:  # text that is no UTF-8
            return self._encode_coerced(value)

    def _compared(self, value: object) -> bytes:
        way = self._way
        try:
            body = way.write(value, warnings="error")
        except ValueError:
            return self._encode_coerced(value)
        # Refuse a value that is too large before comparing it.
        if way.is_kept or len(body) > model.PAYLOAD_BYTES_MAX or not way.problem(value, body):
            return body
        return self._encode_coerced(value)

    def decode(self, body: bytes) -> Any:
        """Return the result in the type of the return annotation."""
        try:
            return self._way.read(body)
        except ValueError as error:
            raise errors.UsageError(
                f"{self._task}: the stored result does not fit the return "
                f"annotation {self._text} ({cause_of(error)}): was it changed since?"
            ) from None

    def _refuse_changed(self, value: object) -> None:
        """Refuse a value whose annotation is too loose to read it back unchanged."""
        try:
            changed = self._look and self._look(value)
        except (TypeError, AttributeError, KeyError):  # another type, reported later
            return
        except ValueError as error:
            raise errors.UsageError(
                f"{self._task}: the returned value is {error}: {FLATTER}"
            ) from None
        if changed:
            problem, hint = loose.explain(changed, value, can_be_read)
            more = f": annotate the function with -> {hint}" if hint else ""
            raise errors.UsageError(f"{self._task}: the result {problem}{more}")

    def _encode_coerced(self, value: object) -> bytes:
        """Encode a value that can be converted to the annotated type, such as a tuple to a list."""
        spent = loose.find_iterator(value)
        if spent:
            raise errors.UsageError(f"{self._task}: the result: {once_text(spent.part)}")
        way = self._way
        try:
            fitting = self._validator.validate_python(value)
        except ValueError as error:
            raise errors.UsageError(
                f"{self._task}: returned {shown(value)}, but is annotated to return {self._text} "
                f"({cause_of(error)})"
            ) from None
        try:
            body = way.write(fitting, warnings=False)
        except ValueError as error:
            problem = unwritten_text(error)
            raise errors.UsageError(
                f"{self._task}: the result (-> {self._text}) {problem}"
            ) from None
        from taskq.calls.equality import find_lost  # noqa: PLC0415 - few types need it

        lost = find_lost(value, fitting)
        problem = loss_text(lost, lost.path) if lost else ""
        if not problem and not way.is_kept:
            problem = way.problem(fitting, body)
        if problem:
            raise errors.UsageError(f"{self._task}: the result (-> {self._text}) {problem}")
        return body


def _takes_none(validator: SchemaValidator) -> bool:
    try:
        return validator.isinstance_python(None)
    except Exception:  # noqa: BLE001 - a validator of the type may raise anything
        return False


def _optional(annotation: Any) -> Any:
    try:
        # ``typing`` would return a cached union of these types in an order chosen elsewhere.
        return annotation | None
    except TypeError:
        return typing.Optional.__getitem__(annotation)


def _never_read(annotation: Any) -> str:
    """Return a type whose values are never read back, if each value of the annotation has one."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _never_read(parts[0])
    if origin in {Union, UnionType}:
        names = [_never_read(part) for part in parts]
        return names[0] if all(names) else ""
    values = parts if origin is Literal else ()
    if inspect.isclass(annotation):
        if hasattr(annotation, "get_secret_value"):
            return annotation.__name__
        for field in getattr(annotation, "__pydantic_fields__", {}).values():
            if field.is_required() and (part := _never_read(field.annotation)):
                return part
        values = tuple(annotation) if issubclass(annotation, Enum) else ()
    if values and not any(map(partial(_is_read, annotation), values)):
        return inspect.formatannotation(annotation)
    return ""


def _is_read(kind: Any, value: object) -> bool:
    way = way_of(kind)
    return not way.problem(value, way.write(value, warnings=False))


def large_problem(body: bytes, around: int = 0) -> str:
    """Return why readers refuse a long JSON text: depth or a long number; "" if they accept it."""
    if is_deep(body, around):
        return f"is {parsing.too_deep(parsing.VALUE_DEPTH_MAX)}: {FLATTER}"
    if len(body) > _DIGITS_MAX and has_long_number(body):
        return f"holds a number of over {_DIGITS_MAX} digits: pass it as text"
    return ""


def _scalar_schema(kind: type) -> CoreSchema:
    return cast("CoreSchema", {"type": "nullable", "schema": {"type": _PLAIN[kind]}})


def encode_loose(task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Return the payload of a call with an unknown signature.

    Raises:
        InvalidCall: a value has no form in JSON.
        PayloadTooLarge: the payload is over PAYLOAD_BYTES_MAX.
    """
    from pydantic_core import to_json  # noqa: PLC0415

    values = {REST: args, **kwargs} if args else kwargs
    body = b""
    try:
        changed = loose.find_unreadable(values, _is_read_alone)
        if changed is None:
            body = to_json(
                values, bytes_mode="base64", inf_nan_mode="strings", by_alias=False, round_trip=True
            )
    except ValueError as error:
        raise errors.InvalidCall(
            task, f"the arguments cannot be written as JSON: {error}"
        ) from None
    if changed:
        raise errors.InvalidCall(task, _unreadable_text(changed))
    problem = large_problem(body, 1)
    if problem:
        raise errors.InvalidCall(task, f"a part of the arguments {problem}")
    check_size(f"{task}: the payload", body)
    return body


def once_text(part: object) -> str:
    """Return why an iterator is refused: the first look at it may have taken its values."""
    return f"{shown(part)} can be read once: pass a list, or what is in it"


def _unreadable_text(changed: loose.Changed) -> str:
    part, kind = changed.part, shown(changed.part)
    if hasattr(part, "__next__"):
        return once_text(part)
    at = "".join(f"[{name!r}]" for name in changed.path)
    what = "keys of a dict" if isinstance(part, dict) else kind
    return f"{what} at {at} of the arguments would come back as something else: {_READABLE}"


def _is_read_alone(value: Any) -> bool:
    """Return whether a value is read back from JSON by its own type, or has no JSON form."""
    kind: Any = type(value)
    if kind is dict:
        kinds = set(map(type, value))
        if len(kinds) > 1:
            return False
        kind = dict[kinds.pop(), None]  # type: ignore[misc]
    try:
        way = way_of(kind)
        body = way.write(value, warnings=False)
    except (TypeError, ValueError):
        return True
    return not way.problem(value, body)


@lru_cache(_KINDS_KEPT)
def way_of(kind: Any) -> JsonForm:
    """Return the JSON form of a type without an annotation around it."""
    config = None if inspect.isclass(kind) else json_config()
    return JsonForm(*compiled(kind, config), is_kept=False)


def decode_loose(body: bytes) -> Any:
    """Return a result with an unknown annotation, as plain JSON values."""
    from pydantic_core import from_json  # noqa: PLC0415

    return from_json(body)


def encode_reason(reason: str) -> bytes:
    """Return a reason in UTF-8; its middle is cut if it is over REASON_BYTES_MAX."""
    encoded = reason.encode("utf-8", "replace")
    if len(encoded) <= model.REASON_BYTES_MAX:
        return encoded
    gap = b"\n...\n"
    half = (model.REASON_BYTES_MAX - len(gap)) // 2
    head = encoded[:half].decode("utf-8", "ignore").encode()
    return head + gap + encoded[-half:].decode("utf-8", "ignore").encode()


def shown(value: object) -> str:
    """Return the type of a value for an error message: its content may be secret."""
    return type(value).__name__


def cause_of(error: Exception) -> str:
    """Return pydantic's error text without its links and line breaks."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error).split("\n", 1)[0]
    first = details(include_url=False, include_context=False, include_input=False)[0]
    return cause_at(first["loc"], str(first["msg"]))


def cause_at(path: Iterable[object], message: str) -> str:
    place = "".join(f"[{part!r}]" for part in path)
    return f"at {place}: {message}" if place else message
