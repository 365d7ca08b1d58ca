"""Encode the arguments of a task's calls as JSON payloads, checked by its annotations, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NotRequired, cast, get_args, get_origin

import taskq._native as native
from taskq.calls import loose, serialization, signature
from taskq.core import errors, model
from taskq.log.format.bodies import check_size

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError

_PROBLEMS_MAX: Final = 3


class ArgumentCodec:
    """Encodes calls of one function as payloads, and decodes payloads.

    The fast path is two calls into pydantic_core; the slow path composes the error.

    Attributes:
        encode: (args, kwargs) -> payload. Raises InvalidCall or PayloadTooLarge.
        validated: (args, kwargs) -> values by name, in the annotated types.
        dump: values by name -> payload.
        decode: payload -> (args, kwargs). Raises InvalidCall.
    """

    def __init__(self, signature: signature.Signature) -> None:
        self.signature = signature
        self._task = signature.task
        self._hints = signature.hints()
        fields = self._fields()
        plain = serialization.compiled_fields(fields)
        try:
            schemas = {name: serialization.schema_of(_bare(hint)) for name, hint in fields.items()}
            validator, serializer = plain or serialization.made(
                serialization.schema_of(_typed_dict(fields))
            )
        except TypeError as error:
            raise serialization.unusable(self._task, self._hints, error) from error
        is_safe = all(loose.is_kept(schema, floats=True) for schema in schemas.values())
        self._validator, self._serializer = validator, serializer
        self._way = serialization.JsonForm(validator, serializer, is_kept=is_safe)
        #: whether models may be written without their unset fields
        self._is_brief = not (is_safe or any(map(loose.has_factory, schemas.values())))
        #: whether the conversion may lose a part of the value
        self._loses = any(map(loose.may_lose, schemas.values()))
        #: functions that search parameters of any type for changed parts
        looks = {name: loose.look_for(schema) for name, schema in schemas.items()}
        self._looks = {name: look for name, look in looks.items() if look}
        self._is_simple = signature.plain and not (self._looks or self._loses)
        self._validate: Callable[[dict[str, Any]], dict[str, Any]] = validator.validate_python
        self.encode: Callable[[tuple[Any, ...], dict[str, Any]], bytes]
        self.decode: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]
        if signature.plain:
            self.encode, self.decode = self._plain_encoder(), self._plain_decoder()
        else:
            self.encode, self.decode = self._encode, self._decode

    def validated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the call's values by parameter name, in the annotated types."""
        if not kwargs and self._is_simple and len(args) == len(self.signature.names):
            try:
                return self._validate(dict(zip(self.signature.names, args, strict=True)))
            except ValueError:
                # The slow path composes the error.
                return self._checked(self._unread(args, kwargs))
        return self._checked(self.signature.bind(args, kwargs))

    def _unread(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a call after a first read; refuse an iterator, which is used up."""
        values = self.signature.bind(args, kwargs)
        spent = loose.find_iterator(values)
        if spent:
            raise self._refused(spent.path, lambda _: serialization.once_text(spent.part))
        return values

    def _checked(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            checked = cast("dict[str, Any]", self._validator.validate_python(values))
        except ValueError as error:
            raise self._invalid(error) from None
        for name, look in self._looks.items():
            try:
                changed = look(checked[name]) if name in checked else None
            except ValueError as error:
                problem = f"is {error}: {serialization.FLATTER}"
                raise self._refused((name,), partial(str.format, problem)) from None
            if changed:
                raise self._loose(name, checked[name], changed)
        if self._loses:
            from taskq.calls.equality import find_lost  # noqa: PLC0415 - few types need it

            lost = find_lost(values, checked)
            if lost:
                raise self._refused(lost.path, partial(serialization.loss_text, lost))
        return checked

    def dump(self, values: dict[str, Any]) -> bytes:
        """Return the payload of validated values."""
        brief = self._way.brief(values) if self._is_brief else None
        try:
            body = brief or self._way.write(values, warnings=False)
        except ValueError as error:
            raise self._unserializable(values, error) from None
        problem = (
            serialization.large_problem(body, 1) if len(body) > serialization.FLAT_BYTES_MAX else ""
        )
        if problem:
            raise errors.InvalidCall(self._task, f"what the arguments hold {problem}")
        check_size(f"{self._task}: the payload", body)
        if not (self._way.is_kept or brief):
            self._compare(values, body)
        return body

    def _compare(self, values: dict[str, Any], body: bytes) -> None:
        """Raise InvalidCall if a worker would decode other values, or fail to decode them."""
        try:
            difference = self._way.difference(values, body)
        except ValueError as error:
            path: tuple[object, ...] = ()
            cause = str(error)
            if hasattr(error, "errors"):  # pydantic's kind of ValueError is slow to import
                detail = error.errors(include_url=False)[0]
                path, cause = detail["loc"], detail["msg"]
            if not path:
                raise errors.InvalidCall(
                    self._task, f"what the arguments hold {serialization.unread_text(cause)}"
                ) from None
            raise self._refused(
                path, lambda inner: serialization.unread_text(serialization.cause_at(inner, cause))
            ) from None
        if difference:
            raise self._refused(difference.path, partial(serialization.difference_text, difference))

    def _refused(
        self, path: tuple[object, ...], text: Callable[[tuple[object, ...]], str]
    ) -> errors.InvalidCall:
        """Return the error of an argument; ``text`` describes the fault at a place within it."""
        name, *inner = path
        label = name = str(name)
        if name in {signature.REST, signature.KEYWORDS}:
            name = self._variadic_name(name)
            label = f"{path[0]}{name}"
            if inner:
                label, inner = f"{label}[{inner[0]!r}]", inner[1:]
        problem = text(tuple(inner))
        return errors.InvalidCall(
            self._task, f"parameter {label!r} ({self._type_text(name)}) {problem}"
        )

    def _plain_encoder(self) -> Callable[[tuple[Any, ...], dict[str, Any]], bytes]:
        names = self.signature.names
        count = len(names)
        looks = self._looks or self._loses
        validate = self._looking() if looks else self._validator.validate_python
        dump = self._serializer.to_json if self._way.is_kept else self.dump
        slow, named = self._encode_again, _naming(names)

        def large(args: tuple[Any, ...], kwargs: dict[str, Any], body: bytes) -> bytes:
            fits = len(body) <= model.PAYLOAD_BYTES_MAX and not serialization.large_problem(body, 1)
            return body if fits else slow(args, kwargs)

        if native.is_on:
            return native.plain.Encoder(
                names, validate, dump, slow, large, serialization.FLAT_BYTES_MAX
            )

        def encode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
            if len(args) == count and not kwargs:
                values = named(*args)
            elif args:
                if len(args) > count:
                    return slow(args, kwargs)
                values = dict(zip(names, args))  # noqa: B905 - the keyword costs half as much again
                if kwargs:
                    values.update(kwargs)
                    if len(values) != len(args) + len(kwargs):
                        return slow(args, kwargs)
            else:
                values = kwargs
            try:
                body = dump(validate(values))
            except ValueError:
                # Both of pydantic's errors are ValueErrors; the slow path composes the message.
                return slow(args, kwargs)
            return body if len(body) <= serialization.FLAT_BYTES_MAX else large(args, kwargs, body)

        return encode

    def _looking(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        validate, looks = self._validator.validate_python, tuple(self._looks.items())
        loses = self._loses
        if loses:
            from taskq.calls.equality import find_lost, keeps_parts  # noqa: PLC0415 - as above

        def looked(values: dict[str, Any]) -> dict[str, Any]:
            checked: dict[str, Any] = validate(values)
            if loses and not keeps_parts(values, checked) and find_lost(values, checked):
                raise ValueError("lost")  # the slow path composes the error
            for given in checked.values():
                if type(given) not in loose.KEPT:
                    break
            else:
                return checked
            for name, look in looks:
                value = checked.get(name)
                if type(value) not in loose.KEPT and not loose.is_flat(value) and look(value):
                    raise ValueError(name)  # as above
            return checked

        return looked

    def _plain_decoder(self) -> Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]]:
        validate, slow = self._way.read, self._decode
        if native.is_on:
            return native.plain.Decoder(validate, slow)

        def decode(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
            try:
                return (), validate(payload)
            except ValueError:
                return slow(payload)

        return decode

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.dump(self.validated(args, kwargs))

    def _encode_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.dump(self._checked(self._unread(args, kwargs)))

    def _decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            values = self._way.read(payload)
        except ValueError as error:
            values = self._decode_settled(payload, error)
        else:
            names = self.signature.names
            if signature.REST in values and any(name not in values for name in names):
                values = self._decode_settled(payload, None)
        return self.signature.split(values)

    def _decode_settled(self, payload: bytes, first: ValueError | None) -> dict[str, Any]:
        """Decode a payload whose sender may not have known the parameters' names."""
        from pydantic_core import from_json, to_json  # noqa: PLC0415 - slow to import

        try:
            raw = from_json(payload)
        except ValueError as error:
            raise errors.InvalidCall(self._task, f"the payload is no JSON: {error}") from None
        if not isinstance(raw, dict):
            raise errors.InvalidCall(self._task, "the payload is no JSON object")
        settled = self.signature.settled(raw)
        if first is not None and settled == raw:
            raise self._invalid(first) from None
        try:
            text = to_json(settled, inf_nan_mode="strings")
            return cast("dict[str, Any]", self._way.read(text))
        except ValueError as error:
            raise self._invalid(error) from None

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for parameter in self.signature.signature.parameters.values():
            hint = serialization.readable(self._hints[parameter.name])
            if parameter.kind is parameter.VAR_POSITIONAL:
                fields[signature.REST] = NotRequired[list[hint]]  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                fields[signature.KEYWORDS] = NotRequired[dict[str, hint]]  # type: ignore[valid-type]
            elif parameter.name in self.signature.defaults:
                fields[parameter.name] = NotRequired[hint]
            else:
                fields[parameter.name] = hint
        return fields

    def _loose(self, name: str, value: Any, changed: loose.Changed) -> errors.InvalidCall:
        label, hinted = name, name
        if name in {signature.REST, signature.KEYWORDS}:
            key, *path = changed.path
            value, changed = value[key], loose.Changed(tuple(path), changed.part)
            hinted = f"{name}{self._variadic_name(name)}"
            label = f"{hinted}[{key!r}]"
        problem, hint = loose.explain(changed, value, serialization.can_be_read)
        more = f": write {hinted}: {hint}" if hint else ""
        return errors.InvalidCall(self._task, f"parameter {label!r} {problem}{more}")

    def _invalid(self, error: ValueError) -> errors.InvalidCall:
        # pydantic's validation only raises ValidationError, whose class is slow to import.
        checked = cast("ValidationError", error)
        details = checked.errors(include_url=False, include_context=False)
        problems = [self._problem(detail) for detail in details[:_PROBLEMS_MAX]]
        if len(details) > _PROBLEMS_MAX:
            problems.append(f"and {len(details) - _PROBLEMS_MAX} more")
        return errors.InvalidCall(self._task, "; ".join(problems))

    def _problem(self, detail: ErrorDetails) -> str:
        place, value = detail["loc"], detail["input"]
        if not place:
            return detail["msg"]
        name, inner = str(place[0]), place[1:]
        if name in {signature.REST, signature.KEYWORDS} and inner:
            label = f"{name}{self._variadic_name(name)}[{inner[0]!r}]"
            expected, inner = self._type_text(self._variadic_name(name)), inner[1:]
        else:
            label, expected = name, self._type_text(name)
            if detail["type"] == "extra_forbidden" and not inner:
                return self.signature.unknown(name)
            if detail["type"] == "missing" and not inner:
                return f"parameter {name!r} ({expected}) is missing{self._of_context()}"
        where = "".join(f"[{part!r}]" for part in inner)
        where = f" at {where}" if where else ""
        got = f"{serialization.shown(value)}{where}"
        return f"parameter {label!r} must be {expected}, got {got}: {detail['msg']}"

    def _of_context(self) -> str:
        # Other libraries pass the job as the first argument.
        if self.signature.names[:1] not in {("ctx",), ("context",)}:
            return ""
        return (
            f": workers give no {self.signature.names[0]}, so leave it out; current_job() has the "
            f"job's id and attempt, Inject[Database] what a lifespan opened"
        )

    def _unserializable(self, values: Mapping[str, Any], error: Exception) -> errors.InvalidCall:
        for name, value in values.items():
            try:
                # Field by field: the serializer does not name the faulty field.
                self._serializer.to_json({name: value}, warnings=False)
            except ValueError as cause:
                return self._refused((name,), partial(_unwritten, cause))
        return errors.InvalidCall(self._task, f"the arguments cannot be written as JSON: {error}")

    def _variadic_name(self, key: str) -> str:
        return self.signature.rest if key == signature.REST else self.signature.keywords

    def _type_text(self, name: str) -> str:
        return inspect.formatannotation(self._hints.get(name, Any))


def _unwritten(error: ValueError, _: object) -> str:
    return serialization.unwritten_text(error)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint


def _naming(names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """Return a function that names its arguments; for a few names a literal halves its time."""
    match names:
        case (a,):
            return lambda x: {a: x}
        case (a, b):
            return lambda x, y: {a: x, b: y}
        case (a, b, c):
            return lambda x, y, z: {a: x, b: y, c: z}
    return lambda *values: dict(zip(names, values, strict=True))


def _typed_dict(fields: dict[str, Any]) -> Any:
    from typing_extensions import TypedDict  # noqa: PLC0415 - pydantic refuses typing's before 3.12

    shape: Any = cast("Any", TypedDict)("Arguments", fields)
    shape.__pydantic_config__ = serialization.json_config()
    return shape


def decode_call(payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of an unknown task as plain JSON values."""
    values = serialization.decode_loose(payload)
    if not isinstance(values, dict):
        return (values,), {}
    return tuple(values.pop(signature.REST, ())), values


class StepArguments(ArgumentCodec):
    """Encodes the arguments of a step, except the first, which the flow passes."""

    def __init__(self, signature: signature.Signature) -> None:
        if not signature.names:
            raise errors.UsageError(
                f"{signature.task}: step() fills the first parameter, but there is none with a "
                f"name that takes a positional argument: {signature.signature}"
            )
        self._first = signature.names[0]
        super().__init__(signature)

    def validated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the other parameters, in the annotated types."""
        values = self.signature.bind((None, *args), kwargs)
        del values[self._first]
        return self._checked(values)

    def _fields(self) -> dict[str, Any]:
        fields = super()._fields()
        del fields[self._first]
        return fields
