"""The OpenAPI document, made of the table of endpoints and of what each may be asked."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from taskq.cli.main import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskq_plugins.web.api import Endpoint

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


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "taskq",
            "version": version(DISTRIBUTION),
            "description": "One task log: read by all who may look, changed by programs.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"secret": []}],
    }


def _operation(one: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    model = one.asked.model_json_schema(ref_template=_REF)
    schemas |= model.pop("$defs", {})
    fields: dict[str, Any] = model.get("properties", {})
    required = set(model.get("required", ()))
    in_path = {name for name in fields if f"{{{name}}}" in one.path}
    rest = {name: field for name, field in fields.items() if name not in in_path}
    by_query = one.method == "GET"
    told: dict[str, Any] = {
        "summary": one.says,
        "operationId": one.name,
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
        told["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return told
