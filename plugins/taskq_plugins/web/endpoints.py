"""Endpoints of the API: models of requests, problems, answers, the OpenAPI document."""

from __future__ import annotations

import base64
import binascii
import enum
import json
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

import anyio
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.requests import Request
from starlette.responses import Response

from taskq import __version__, errors, text, values

#: Longest wait for a result or for a job to claim; proxies and clients give up soon after.
WAIT_SECONDS_MAX: Final = 60
JOBS_MAX: Final = 200
CLAIMS_MAX: Final = 100
LEASE_SECONDS_MAX: Final = 3_600
_TEXT_MAX: Final = 500
_Span = float | str


def _printing(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds characters that do not print: remove them")
    return text


#: Free text of a job, without control characters, since terminals and other logs show it.
_Line = Annotated[str, AfterValidator(_printing)]


class Asked(BaseModel):
    """Fields of a query, a path and a body; others are refused."""

    model_config = ConfigDict(extra="forbid")


class Past(Asked):
    """Now, or a moment of the past."""

    at: str = Field(
        "",
        max_length=_TEXT_MAX,
        description="As it was then: a span back (`2h`), a time with its zone, or an lsn.",
    )


class OneJob(Asked):
    """A job by its id, or by the beginning of its number."""

    id: str = Field(max_length=_TEXT_MAX)


class JobAtMoment(OneJob, Past):
    """A job, now or at a moment of the past."""


class Jobs(Past):
    """Selection of jobs, newest first."""

    q: str = Field(
        "",
        max_length=_TEXT_MAX,
        description="As in the page: `state:dead task:mail.send queue:mail since:2h text`.",
    )
    limit: int = Field(50, ge=1, le=JOBS_MAX)
    before: int = Field(
        0, ge=0, lt=2**63, description="Only jobs before this number: the page's `next`."
    )


class JobsPage(Jobs):
    """Selection of jobs for a person, page by page."""

    sort: str = Field("", max_length=20, description="A column; downwards with a minus.")
    looked: int = Field(0, ge=0, lt=2**63, description="Jobs that the pages before looked at.")
    act: str = Field("", max_length=20, description="The last action.")
    done: int = Field(0, ge=0, lt=2**63, description="Number of jobs that it changed.")
    stopping: int = Field(0, ge=0, lt=2**63, description="Running jobs that were asked to stop.")
    changed: int = Field(0, ge=0, lt=2**63, description="Jobs that had changed meanwhile.")


class Result(OneJob):
    """A job's result."""

    wait: float = Field(
        0, ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the end of the job."
    )


class EditRequest(OneJob):
    """Changes of a waiting job."""

    run_now: bool = Field(False, description="It is ready at once.")
    delay: _Span | None = Field(None, description="It is due after this time.")
    priority: int | None = None
    queue: str | None = None


class SignalRequest(OneJob):
    """A signal for a job."""

    name: str = Field(
        max_length=_TEXT_MAX, description="Name of the signal, as the job waits for it."
    )
    value: Any = Field(None, description="Value of the signal.")
    once: _Line = Field("", max_length=255, description="The job takes one signal of this text.")


class Many(Asked):
    """An act on all jobs of a search, or on jobs by id."""

    act: Literal["cancel", "requeue", "purge"]
    q: str = Field("", max_length=_TEXT_MAX, description="As for `jobs`.")
    ids: list[str] = Field([], max_length=JOBS_MAX, description="These jobs, and no others.")
    before: int = Field(0, ge=0, lt=2**63, description="Only jobs before this number.")
    dry_run: bool = Field(False, description="Only count them.")

    @field_validator("ids", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value  # a form sends text

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not (self.q or self.ids):
            raise ValueError("choose jobs by ids, or by a search in q")
        return self


class OneName(Asked):
    """A queue or a schedule by its name."""

    name: str = Field(max_length=_TEXT_MAX)


class TaskLimits(OneName):
    """Limits of a task, which replace those in its code; without any, the code's limits apply."""

    concurrency: int | None = Field(None, description="Jobs at a time; 0 for no limit.")
    rate: str | None = Field(None, max_length=50, description='Such as "10/s", or "none".')


class SlotsRequest(Asked):
    """Jobs that workers run at a time."""

    count: int | None = Field(None, description="None: as they were started.")
    worker: int | None = Field(None, description="Process id of one worker; None for all.")


class AddSchedule(OneName):
    """A call to enqueue by the clock; give every or cron."""

    task: str = Field(min_length=1, max_length=_TEXT_MAX)
    arguments: dict[str, Any] = Field({}, description="Arguments of the task, by parameter name.")
    every: _Span | None = Field(None, description='Such as "10m".')
    cron: str | None = Field(None, max_length=_TEXT_MAX)
    tz: str = Field("UTC", max_length=_TEXT_MAX)
    queue: str | None = Field(None, max_length=_TEXT_MAX)

    @field_validator("arguments", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return values.parse_json(
                value, parse_constant=values.refuse_constant
            )  # a form sends text
        except ValueError as error:
            raise ValueError(f"the arguments are no JSON: {error}") from error


class EncodedBody(Asked):
    """A payload or result."""

    encoding: Literal["json", "text", "base64"]
    data: Any

    def raw(self) -> bytes:
        """Return its bytes.

        Raises:
            UsageError: the data does not match the encoding.
        """
        if self.encoding == "json":
            return json.dumps(self.data, separators=(",", ":"), ensure_ascii=False).encode()
        if not isinstance(self.data, str):
            raise errors.UsageError(f"data with the encoding {self.encoding} must be a string")
        if self.encoding == "text":
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise errors.UsageError(f"data is no base64: {error}") from error


class Enqueue(Asked):
    """Either a call of a task by its name, or bytes without a task."""

    task: str | None = Field(None, min_length=1, max_length=_TEXT_MAX)
    arguments: dict[str, Any] = Field({}, description="Arguments of the task, by parameter name.")
    payload: EncodedBody | None = None
    queue: str | None = None
    priority: int | None = None
    attempts: int | None = None
    delay: _Span | None = None
    expires: _Span | None = None
    key: _Line | None = None
    window: _Span | None = None
    on_conflict: Literal["first", "replace", "raise"] | None = None
    headers: dict[_Line, _Line] | None = None
    keep: _Span | None = None

    def options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"task", "arguments", "payload"}, exclude_none=True)


class Claim(Asked):
    """Jobs to run in another process, in any language."""

    count: int = Field(1, ge=1, le=CLAIMS_MAX)
    queues: list[str] | None = Field(None, max_length=CLAIMS_MAX, description="None for all.")
    wait: float = Field(0, ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the first.")
    lease: float = Field(
        60, ge=1, le=LEASE_SECONDS_MAX, description="Seconds until a job is given to others."
    )


class OneClaim(Asked):
    """A claim by its token."""

    token: str = Field(max_length=_TEXT_MAX)


class Extend(OneClaim):
    """New lease of a claim, from now on."""

    seconds: float = Field(60, ge=1, le=LEASE_SECONDS_MAX)


class Ack(OneClaim):
    """The attempt succeeded."""

    result: EncodedBody | None = None


class Nack(OneClaim):
    """The attempt failed: the job is retried later, or dead after its last attempt."""

    reason: str = Field("", max_length=65_536, description="First line `Class: message`.")
    delay: _Span | None = Field(None, description="None for a backoff.")


class Release(OneClaim):
    """The job becomes ready again, and the attempt does not count."""

    delay: _Span = 0


#: Statuses by class; the first match counts. An unreadable log is an error of the server.
_STATUS: Final[tuple[tuple[type[errors.TaskqError], HTTPStatus], ...]] = (
    (errors.JobNotFound, HTTPStatus.NOT_FOUND),
    (errors.PayloadTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.UsageError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (errors.MomentGone, HTTPStatus.GONE),
    (errors.ResultTimeout, HTTPStatus.ACCEPTED),
    (errors.StaleDelivery, HTTPStatus.CONFLICT),
    (errors.DuplicateKey, HTTPStatus.CONFLICT),
    (errors.NotDead, HTTPStatus.CONFLICT),
    (errors.KeyHeld, HTTPStatus.CONFLICT),
    (errors.JobSettled, HTTPStatus.CONFLICT),
    (errors.JobError, HTTPStatus.CONFLICT),
    (errors.DiskFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (errors.LogError, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Problem(Exception):
    """A refused request.

    Attributes:
        status: status of the answer.
        detail: the error and its remedy.
        kind: class of the taskq error, for programs; "" for the page's own refusals.
        headers: extra headers of the answer.
    """

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        kind: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind
        self.headers = headers or {}

    def as_dict(self) -> dict[str, Any]:
        document = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
        }
        return document | ({"error": self.kind} if self.kind else {})


def problem_of(error: errors.TaskqError) -> Problem:
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.CONFLICT
    )
    return Problem(status, str(error), type(error).__name__)


_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The error and its remedy."},
        "error": {"type": "string", "description": "The class of the error."},
    },
}


class Role(enum.IntEnum):
    """Rights of a visitor; each role includes the earlier ones."""

    READ = 1
    #: cancel, requeue, edit, pause, enqueue, claim, …
    OPERATE = 2
    #: also acts that cannot be undone
    ADMIN = 3


class Visitor(NamedTuple):
    """The person or program of a request: its name in the audit, and its role."""

    name: str
    role: Role


class Endpoint(NamedTuple):
    """One endpoint.

    Attributes:
        asked: model of the request: path, query and body.
        answer: returns the document for a request.
        role: least role for an act.
    """

    method: str
    path: str
    name: str
    says: str
    asked: type[Asked]
    answer: Callable[[Any], Coroutine[Any, Any, Any]]
    role: Role = Role.OPERATE

    def needs(self, act: str = "") -> Role:
        """Return the least role; ``act`` is the act on ``many`` jobs."""
        return Role.ADMIN if act == "purge" else self.role

    def check(self, visitor: Visitor, asked: Asked) -> None:
        """Raise a problem if a visitor's role is too low for an act.

        Raises:
            Problem: the role is too low.
        """
        needs = self.needs(getattr(asked, "act", ""))
        if self.method == "POST" and visitor.role < needs:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"{visitor.name or 'you'} may {visitor.role.name.lower()} here, and {self.name} "
                f"needs the role {needs.name.lower()}: ask for a token with it",
            )

    async def respond(self, request: Request) -> Response:
        is_post = self.method == "POST"
        given = await _body(request) if is_post else dict(request.query_params)
        try:
            asked = self.asked.model_validate({**given, **request.path_params}, strict=is_post)
        except ValidationError as error:
            raise _wrong(error) from None
        self.check(request.state.visitor, asked)
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
            except (Problem, errors.TaskqError) as error:
                problem = error  # without its exception group
            finally:
                both.cancel_scope.cancel()
        if problem is not None:
            raise problem
        return Response()  # the client has disconnected


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
            "description": "One task log: readers may look, programs may change it.",
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
                "description": "The error.",
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
    """Answer with JSON; browsers get secret values hidden, as in the pages."""
    return json_response(text.without_secrets(value) if request.state.hides else value)


def json_response(value: object) -> Response:
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=str))
    return Response(text, media_type="application/json")


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    try:
        given = values.parse_json(raw, parse_constant=values.refuse_constant) if raw else {}
        json.dumps(given, ensure_ascii=False).encode()  # fails for a lone surrogate
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body must be one JSON object: see openapi.json")
    return given


def _wrong(error: ValidationError) -> Problem:
    problems = "; ".join(
        f"{'.'.join(map(str, problem['loc']))[:80] or 'the body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)[:5]
    )
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"{text.printable(problems)}: see /api/openapi.json",
        "UsageError",
    )
