"""``GET /openapi.json``: the protocol, as the types of its messages have it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

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
    adapter,
)

if TYPE_CHECKING:
    from taskq_plugins.hub.wire import Way

_REFS: Final = "#/components/schemas/{model}"
#: What a device reads of its own logs, for a restore.
_READS: Final = {
    "/v1/logs": JSON,
    "/v1/logs/{log_id}/identity": JSON,
    "/v1/logs/{log_id}/segments": JSON,
    "/v1/logs/{log_id}/segments/{segment}": "application/octet-stream",
    "/v1/logs/{log_id}/spill/{name}": "application/octet-stream",
}
_HEADERS: Final = (
    "Taskq-Session", "Upload-Offset", "Taskq-Stem", "Upload-Complete", "Repr-Digest",
)  # fmt: skip


@cache
def document() -> bytes:
    """Return the document as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        paths.setdefault(way.path, {})[way.method.lower()] = _operation(way)
    for path, kind in _READS.items():
        answer = {"200": {"description": "it", "content": {kind: {}}}, **_PROBLEMS}
        paths.setdefault(path, {})["get"] = {"parameters": _fields(path), "responses": answer}
    return json.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "A hub of task logs", "version": str(PROTOCOL)},
            "paths": paths,
            "components": {
                "schemas": _schemas(),
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
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


def _operation(way: Way) -> dict[str, Any]:
    bodies: dict[str, Any] = {JSON: _ref(way.asks[0])}
    parameters = _fields(way.path)
    if way.has_frames:
        bodies = {FRAMES: {}, PACKED: {}}
        parameters += ({"name": name, "in": "header", "schema": _TEXT} for name in _HEADERS)
    content = {JSON_LINES: {}} if way.answer is Given else {JSON: _ref(way.answer)}
    well = "201" if way.path.endswith("enrol") else "200"
    return {
        "summary": " or ".join(str(kind.__doc__).partition("\n")[0] for kind in way.asks),
        "parameters": parameters,
        "requestBody": {"required": True, "content": bodies},
        "responses": {well: {"description": "done", "content": content}, **_PROBLEMS},
    }


def _fields(path: str) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", path)
    return [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names]


def _ref(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REFS.format(model=kind.__name__)}}


_TEXT: Final = {"type": "string"}
_PROBLEMS: Final = {
    "default": {"description": "it was refused", "content": {PROBLEM: _ref(Refused)}}
}
