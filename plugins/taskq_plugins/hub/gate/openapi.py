"""``GET /openapi.json``: the protocol, as the types of its messages have it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from taskq_plugins.hub.messages import Given, Refused
from taskq_plugins.hub.wire import (
    FRAMES,
    JSON,
    JSON_LINES,
    PACKED,
    PROBLEM,
    PROTOCOL,
    WAYS,
    Way,
    adapter,
)

_REFS: Final = "#/components/schemas/{model}"
_BYTES: Final = "application/octet-stream"
#: What a device reads of its own logs, for a restore.
_READS: Final = {
    "/v1/logs": JSON,
    "/v1/logs/{log_id}/identity": JSON,
    "/v1/logs/{log_id}/segments": JSON,
    "/v1/logs/{log_id}/segments/{segment}": _BYTES,
}
_HEADERS: Final = (
    "Taskq-Session", "Upload-Offset", "Taskq-Stem", "Upload-Complete", "Repr-Digest",
)  # fmt: skip


@cache
def document() -> bytes:
    """Return the document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        paths.setdefault(way.path, {})[way.method.lower()] = _asked(way)
    for path, kind in _READS.items():
        paths.setdefault(path, {})["get"] = _operation(path, {kind: {}})
    token = {"type": "http", "scheme": "bearer"}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "A hub of task logs", "version": str(PROTOCOL)},
            "paths": paths,
            "components": {"schemas": _schemas(), "securitySchemes": {"token": token}},
            "security": [{"token": []}],
        }
    ).encode()


def _schemas() -> dict[str, Any]:
    kinds = {kind for way in WAYS for kind in (*way.asks, way.answer) if not way.has_frames}
    kinds |= {way.answer for way in WAYS} | {Refused}
    named = [(kind, "validation", adapter(kind)) for kind in kinds - {Given}]
    _, whole = TypeAdapter.json_schemas(named, ref_template=_REFS)  # type: ignore[arg-type]
    schemas: dict[str, Any] = whole["$defs"]
    for way in WAYS:
        for kind in way.asks if "{log_id}" in way.path and not way.has_frames else ():
            body = schemas[kind.__name__]
            del body["properties"]["log_id"]  # the path has it
            body["required"].remove("log_id")
    return schemas


def _asked(way: Way) -> dict[str, Any]:
    content = {JSON_LINES: {}} if way.answer is Given else {JSON: _ref(way.answer)}
    status = "201" if way.path.endswith("enrol") else "200"
    operation = _operation(way.path, content, status, _HEADERS if way.has_frames else ())
    bodies = {FRAMES: {}, PACKED: {}} if way.has_frames else {JSON: _ref(way.asks[0])}
    summary = " or ".join(str(kind.__doc__).partition("\n")[0] for kind in way.asks)
    return operation | {"summary": summary, "requestBody": {"required": True, "content": bodies}}


def _operation(
    path: str, content: dict[str, Any], status: str = "200", headers: tuple[str, ...] = ()
) -> dict[str, Any]:
    text, problem = {"type": "string"}, {PROBLEM: _ref(Refused)}
    fields = [(name, "path") for name in re.findall(r"{(\w+)}", path)]
    fields += ((name, "header") for name in headers)
    parameters = [
        {"name": name, "in": place, "required": place == "path", "schema": text}
        for name, place in fields
    ]
    answers = {
        status: {"description": "done", "content": content},
        "default": {"description": "it was refused", "content": problem},
    }
    return {"parameters": parameters, "responses": answers}


def _ref(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REFS.format(model=kind.__name__)}}
