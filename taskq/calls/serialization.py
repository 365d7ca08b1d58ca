"""Results as JSON, and what arguments and results share.

Built at a task's first use, since pydantic is slow to import and annotations may name what is
defined later. Bytes are base64 and infinite floats are strings, at every depth but inside pydantic
models, which bring a configuration of their own.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NotRequired,
    Optional,
    Union,
    cast,
    get_args,
    get_origin,
)

from taskq._lazy import import_without_types
from taskq.calls.loose import KEPT, Look, explain, find_changed, find_read_once, look_for
from taskq.calls.naming import check_hint
from taskq.calls.signature import REST, Signature
from taskq.core.errors import InvalidCall, PayloadTooLarge, UsageError
from taskq.core.model import PAYLOAD_BYTES_MAX, REASON_BYTES_MAX
from taskq.core.parsing import DEPTH_MAX, too_deep
from taskq.log.config import SPILL_HINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ConfigDict
    from pydantic_core import SchemaSerializer, SchemaValidator
    from pydantic_core.core_schema import CoreConfig, CoreSchema


#: Types that need no more of pydantic than its core, and what that calls them.
_PLAIN: Final[dict[object, str]] = {
    str: "str", int: "int", float: "float", bool: "bool", Any: "any",
    None: "none", NoneType: "none",
}  # fmt: skip
_OPTIONAL_PARTS: Final = 2
_ROOT: Final[CoreConfig] = {
    "ser_json_bytes": "base64", "val_json_bytes": "base64", "ser_json_inf_nan": "strings",
}  # fmt: skip
#: Kinds of schemas that take an instance as it is, whatever it holds.
_TRUSTED: Final = frozenset({"model", "dataclass"})


#: Shorter than this, nothing is nested too deeply.
FLAT_BYTES_MAX: Final = 2 * DEPTH_MAX


def is_deep(body: bytes) -> bool:
    """Return whether JSON that was written here is nested deeper than it can be read."""
    if len(body) <= FLAT_BYTES_MAX or body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    from pydantic_core import from_json  # noqa: PLC0415 - see the module's docstring

    try:
        from_json(body)
    except ValueError:
        return True
    return False


def json_config() -> ConfigDict:
    """Return how values without a configuration of their own are written."""
    return {
        "extra": "forbid",
        "ser_json_bytes": "base64",
        "val_json_bytes": "base64",
        "ser_json_inf_nan": "strings",
    }


def compiled(
    annotation: Any, config: ConfigDict | None = None
) -> tuple[SchemaValidator, SchemaSerializer]:
    """Return a validator and a serializer of one type.

    Raises:
        TypeError: pydantic knows no way to read or write the type.
    """
    schema = plain_schema(annotation)
    if schema is not None:
        return _made(schema)
    with real_dates():
        from pydantic import TypeAdapter  # noqa: PLC0415 - see the module's docstring
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
        from pydantic_core import SchemaError  # noqa: PLC0415

        try:
            return _made(TypeAdapter(annotation, config=config).core_schema)
        except (PydanticUserError, SchemaError) as error:
            raise TypeError(cause_of(error)) from error


def compiled_fields(fields: Mapping[str, Any]) -> tuple[SchemaValidator, SchemaSerializer] | None:
    """Compile a dict of plain values by their types; None if any is not plain."""
    checked: dict[str, CoreSchema] = {}
    for name, hint in fields.items():
        may_miss = get_origin(hint) is NotRequired
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
    return _made(cast("CoreSchema", whole))


@contextlib.contextmanager
def real_dates() -> Iterator[None]:
    """Let pydantic see real dates where freezegun, in a test, has put its own in their place.

    A type is compiled once, so that it would stay as it was found then.
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
    """Return pydantic's schema of a plain type, without pydantic; None if it is not plain."""
    try:
        kind = _PLAIN.get(annotation)
    except TypeError:  # nobody can hash it
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
    """Import pydantic_core alone: its types for checkers take longer than all else in it."""
    import_without_types("pydantic_core", "core_schema")


def _made(schema: CoreSchema) -> tuple[SchemaValidator, SchemaSerializer]:
    import_core()
    from pydantic_core import SchemaSerializer, SchemaValidator  # noqa: PLC0415

    # Given at the root as well: the one of a typed dict does not reach its floats.
    return SchemaValidator(schema, _ROOT), SchemaSerializer(schema, _ROOT)


def trusts_instances(annotation: Any, config: ConfigDict | None = None) -> bool:
    """Return whether the type holds models or dataclasses, which pydantic takes unseen."""
    with real_dates():
        from pydantic import TypeAdapter  # noqa: PLC0415 - see the module's docstring

        left: list[object] = [TypeAdapter(annotation, config=config).core_schema]
    while left:
        schema = left.pop()
        if isinstance(schema, dict):
            if schema.get("type") in _TRUSTED:
                return True
            left += schema.values()
        elif isinstance(schema, list | tuple):
            left += schema
    return False


def looks_into(annotation: Any, config: ConfigDict | None = None) -> Look | None:
    """Return what finds a value's parts that the type leaves open and JSON would change."""
    schema = plain_schema(annotation)
    if schema is None:
        with real_dates():
            from pydantic import TypeAdapter  # noqa: PLC0415 - see the module's docstring

            schema = TypeAdapter(annotation, config=config).core_schema
    return look_for(schema)


def can_be_read(kind: type) -> bool:
    """Tell whether a type may be an annotation that brings its values back."""
    try:
        return looks_into(kind) is not find_changed
    except Exception:  # noqa: BLE001 - pydantic knows many reasons
        return False


def unusable(task: str, hints: Mapping[str, Any], error: TypeError) -> UsageError:
    """Says which of the annotations cannot be written as JSON."""
    for name, hint in hints.items():
        try:
            check_hint(task, name if name == "the result" else f"parameter {name!r}", hint)
        except UsageError as problem:
            return problem
        try:
            compiled(hint)
        except TypeError as cause:
            # Of a type within a dataclass, which pydantic alone looks into.
            known = f" ({cause})" if "typing_extensions" in str(cause) else ""
            return UsageError(
                f"{task}: the annotation {inspect.formatannotation(hint)} of {name!r} has no form "
                f"in JSON{known}: use a built-in type, a dataclass or a pydantic model"
            )
    return UsageError(f"{task}: the annotations cannot be used: {error}")


def load_checks(signatures: Iterable[Signature]) -> None:
    """Import what calls of these are checked with: up to 0.1 s, which no first call waits for."""
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


class ResultCodec:
    """Turns what one function returns into bytes, and back.

    A None is written as no bytes at all.
    """

    def __init__(self, signature: Signature) -> None:
        self._task = signature.task
        annotation = signature.result_hint()
        self._text = inspect.formatannotation(annotation)
        try:
            plain, _ = compiled(annotation)
            # pydantic takes no configuration beside a bare dataclass, but beside an optional one.
            optional = Optional.__getitem__(annotation)
            self._validator, self._serializer = compiled(optional, json_config())
        except TypeError as error:
            raise unusable(self._task, {"the result": annotation}, error) from error
        self._takes_none = plain.isinstance_python(None)
        self._look = looks_into(annotation)
        #: whose values always fit: to have pydantic warn takes ten times as long as to write them
        self._scalar = next((kind for kind in _SCALARS if kind is annotation), None)

    def encode(self, value: object, limit: int = PAYLOAD_BYTES_MAX) -> bytes | None:
        """Return the result as JSON, None for a None.

        Raises:
            UsageError: the value does not fit the return annotation, or JSON.
            PayloadTooLarge: it is over ``limit`` bytes.
        """
        if value is None:
            if self._takes_none:
                return None
            raise UsageError(
                f"{self._task}: returned None, but is annotated to return {self._text}"
            )
        if self._look is not None and type(value) not in KEPT:
            self._refuse_changed(value)
        try:
            if type(value) is self._scalar:
                body = self._serializer.to_json(value)
            else:
                body = self._serializer.to_json(value, warnings="error")
        except ValueError:
            body = self._encode_coerced(value)
        if is_deep(body):
            raise UsageError(f"{self._task}: the returned value is {too_deep()}: nobody reads that")
        check_size(f"{self._task}: the result", body, limit)
        return body

    def decode(self, body: bytes) -> Any:
        """Return the result as the return annotation has it.

        Raises:
            UsageError: it was written by code that returned another type.
        """
        try:
            return self._validator.validate_json(body)
        except ValueError as error:
            raise UsageError(
                f"{self._task}: the stored result does not fit the return "
                f"annotation {self._text} ({cause_of(error)}): was it changed since?"
            ) from None

    def _refuse_changed(self, value: object) -> None:
        """Refuse what is annotated too loosely to come back as it is.

        Raises:
            UsageError: there is such a part.
        """
        try:
            changed = self._look and self._look(value)
        except (TypeError, AttributeError, KeyError):  # of another type, as is told later
            return
        if changed:
            problem, hint = explain(changed, value, can_be_read)
            more = f": annotate the function with -> {hint}" if hint else ""
            raise UsageError(f"{self._task}: the result {problem}{more}")

    def _encode_coerced(self, value: object) -> bytes:
        """Encode what can become the annotated type, such as a tuple for a list."""
        try:
            return self._serializer.to_json(self._validator.validate_python(value))
        except ValueError as error:
            raise UsageError(
                f"{self._task}: returned {shown(value)}, but is annotated to return {self._text} "
                f"({cause_of(error)})"
            ) from None


def encode_loose(
    task: str, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int = PAYLOAD_BYTES_MAX
) -> bytes:
    """Return the payload of a call whose signature is not known here.

    Raises:
        InvalidCall: a value has no form in JSON.
        PayloadTooLarge: the payload is over ``limit`` bytes.
    """
    from pydantic_core import to_json  # noqa: PLC0415

    values = {REST: args, **kwargs} if args else kwargs
    if once := find_read_once(values):
        kind = type(once.part).__name__
        raise InvalidCall(task, f"{kind} can be read once: pass a list, or what is in it")
    try:
        body = to_json(values, bytes_mode="base64", inf_nan_mode="strings")
    except ValueError as error:
        raise InvalidCall(task, f"the arguments cannot be written as JSON: {error}") from None
    check_size(f"{task}: the payload", body, limit)
    return body


def check_size(what: str, body: bytes, limit: int) -> None:
    """Refuse a payload or result that is too large.

    Raises:
        PayloadTooLarge: it is over ``limit`` bytes.
    """
    if len(body) > limit:
        remedy = SPILL_HINT if limit == PAYLOAD_BYTES_MAX else "raise spill_bytes_max"
        raise PayloadTooLarge(what, len(body), limit, remedy)


def decode_loose(body: bytes) -> Any:
    """Return a result whose annotation is not known here, as plain JSON values."""
    from pydantic_core import from_json  # noqa: PLC0415

    return from_json(body)


def encode_reason(reason: str) -> bytes:
    """Return a reason in UTF-8, without its middle when it is longer than REASON_BYTES_MAX."""
    encoded = reason.encode("utf-8", "replace")
    if len(encoded) <= REASON_BYTES_MAX:
        return encoded
    gap = b"\n...\n"
    half = (REASON_BYTES_MAX - len(gap)) // 2
    head = encoded[:half].decode("utf-8", "ignore").encode()
    return head + gap + encoded[-half:].decode("utf-8", "ignore").encode()


def shown(value: object) -> str:
    """Return what an error may tell of a value: its type, since its content may be secret."""
    return type(value).__name__


def cause_of(error: Exception) -> str:
    """Return what pydantic says, without its links and its many lines."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error).split("\n", 1)[0]
    first = details(include_url=False, include_context=False, include_input=False)[0]
    place = "".join(f"[{part!r}]" for part in first["loc"])
    return f"at {place}: {first['msg']}" if place else str(first["msg"])
