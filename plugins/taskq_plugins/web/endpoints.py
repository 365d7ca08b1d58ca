"""What one endpoint of the API is: how it is asked, answers, and stands in the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from pydantic import ValidationError
from starlette.responses import Response

from taskq import __version__
from taskq.errors import TaskqError
from taskq.text import without_secrets
from taskq.values import parse_json
from taskq_plugins.web.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from taskq_plugins.web.asked import Asked

_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do about it."},
        "error": {"type": "string", "description": "The class of the error."},
    },
}


class Endpoint(NamedTuple):
    """One thing that may be asked.

    Attributes:
        asked: what it takes, from path, query and body.
        answer: makes the document of that.
    """

    method: str
    path: str
    name: str
    says: str
    asked: type[Asked]
    answer: Callable[[Any], Coroutine[Any, Any, Any]]

    async def respond(self, request: Request) -> Response:
        is_post = self.method == "POST"
        given = await _body(request) if is_post else dict(request.query_params)
        try:
            asked = self.asked.model_validate({**given, **request.path_params}, strict=is_post)
        except ValidationError as error:
            raise _wrong(error) from None
        if "wait" not in self.asked.model_fields:
            return _response(request, await self.answer(asked))
        problem: Exception | None = None
        async with anyio.create_task_group() as both:

            async def hear() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    """A body that goes on."""
                both.cancel_scope.cancel()

            both.start_soon(hear)
            try:
                return _response(request, await self.answer(asked))
            except (Problem, TaskqError) as error:
                problem = error  # and not a group of it
            finally:
                both.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return Response()  # nobody hears it


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "taskq",
            "version": __version__,
            "description": "One task log: read by all who may look, changed by programs.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"secret": []}],
    }


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    model = endpoint.asked.model_json_schema(ref_template=_REF)
    schemas |= model.pop("$defs", {})
    fields: dict[str, Any] = model.get("properties", {})
    required = set(model.get("required", ()))
    in_path = {name for name in fields if f"{{{name}}}" in endpoint.path}
    rest = {name: field for name, field in fields.items() if name not in in_path}
    by_query = endpoint.method == "GET"
    operation: dict[str, Any] = {
        "summary": endpoint.says,
        "operationId": endpoint.name,
        "parameters": [
            {
                "name": name,
                "in": "path" if name in in_path else "query",
                "required": name in required,
                "schema": field,
            }
            for name, field in fields.items()
            if by_query or name in in_path
        ],
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": {}}}},
            "4XX": {
                "description": "What is wrong.",
                "content": {
                    "application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}
                },
            },
        },
    }
    if not by_query:
        body = {"type": "object", "properties": rest, "additionalProperties": False}
        if required - in_path:
            body["required"] = sorted(required - in_path)
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def _response(request: Request, value: object) -> Response:
    """Answer with JSON; a browser gets what its pages show, and no secret."""
    return json_response(without_secrets(value) if request.state.hides else value)


def json_response(value: object) -> Response:
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=str))
    return Response(text, media_type="application/json")


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        given = parse_json(raw, parse_constant=_refuse_constant) if raw else {}
        json.dumps(given, ensure_ascii=False).encode()  # half a surrogate is no text
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one JSON object: see openapi.json")
    return given


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")


def _wrong(error: ValidationError) -> Problem:
    problems = "; ".join(
        f"{'.'.join(map(str, problem['loc']))[:80] or 'the body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)[:5]
    )
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, f"{problems}: see /api/openapi.json", "UsageError"
    )
