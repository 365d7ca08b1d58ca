"""What programs may ask of the API, checked here and told by the OpenAPI document."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from taskq.errors import UsageError

#: Longest wait for a result or for a job to claim: a proxy or a client gives up soon after.
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


#: Text of a job that is no name of ours: terminals show it, and logs of other programs.
_Line = Annotated[str, AfterValidator(_printing)]


class Asked(BaseModel):
    """What stands in a query, a path and a body; nothing else may."""

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


class PastJob(OneJob, Past):
    """The same, now or then."""


class Jobs(Past):
    """Which jobs, the newest first."""

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
    """The same for a person, who goes on from page to page."""

    sort: str = Field("", max_length=20, description="A column; downwards with a minus.")
    looked: int = Field(0, ge=0, lt=2**63, description="Jobs that the pages before looked at.")
    act: str = Field("", max_length=20, description="What was done just now.")
    done: int = Field(0, ge=0, lt=2**63, description="To so many jobs.")
    stopping: int = Field(0, ge=0, lt=2**63, description="So many run, and were asked to stop.")
    changed: int = Field(0, ge=0, lt=2**63, description="So many had changed meanwhile.")


class Result(OneJob):
    """A job's result."""

    wait: float = Field(
        0, ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the end of the job."
    )


class Edit(OneJob):
    """What changes of a job that waits."""

    run_now: bool = Field(False, description="It is ready at once.")
    delay: _Span | None = Field(None, description="It is due so long from now.")
    priority: int | None = None
    queue: str | None = None


class Signal(OneJob):
    """What somebody tells a job."""

    name: str = Field(max_length=_TEXT_MAX, description="Of the signal, as the job waits for it.")
    value: Any = Field(None, description="What it is told.")
    once: _Line = Field("", max_length=255, description="The job takes one signal of this text.")


class Many(Asked):
    """What to do to all jobs that a search finds, or to those that are named."""

    act: Literal["cancel", "requeue", "purge"]
    q: str = Field("", max_length=_TEXT_MAX, description="As for `jobs`.")
    ids: list[str] = Field([], max_length=JOBS_MAX, description="These jobs, and no others.")
    before: int = Field(0, ge=0, lt=2**63, description="Only jobs before this number.")
    dry_run: bool = Field(False, description="Only count them.")

    @field_validator("ids", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return value.split() if isinstance(value, str) else value  # a form's

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not (self.q or self.ids):
            raise ValueError("choose jobs by ids, or by a search in q")
        return self


class OneName(Asked):
    """A queue or a schedule by its name."""

    name: str = Field(max_length=_TEXT_MAX)


class Body(Asked):
    """A payload or result, as jobs tell theirs."""

    encoding: Literal["json", "text", "base64"]
    data: Any

    def raw(self) -> bytes:
        """Return its bytes.

        Raises:
            UsageError: the data is not what the encoding says.
        """
        if self.encoding == "json":
            return json.dumps(self.data, separators=(",", ":"), ensure_ascii=False).encode()
        if not isinstance(self.data, str):
            raise UsageError(f"data with the encoding {self.encoding} must be a string")
        if self.encoding == "text":
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"data is no base64: {error}") from error


class Enqueue(Asked):
    """A call of a task by its name, or bytes that no task owns: one of the two."""

    task: str | None = Field(None, min_length=1, max_length=_TEXT_MAX)
    arguments: dict[str, Any] = Field({}, description="Of the task, by parameter name.")
    payload: Body | None = None
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
    """Jobs to run elsewhere, in whatever language."""

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
    """More time for a claim, from now on."""

    seconds: float = Field(60, ge=1, le=LEASE_SECONDS_MAX)


class Ack(OneClaim):
    """The job went well."""

    result: Body | None = None


class Nack(OneClaim):
    """The attempt failed: the job is due again later, or dead after its last attempt."""

    reason: str = Field("", max_length=65_536, description="First line `Class: message`.")
    delay: _Span | None = Field(None, description="None for a backoff.")


class Release(OneClaim):
    """The job is given back without burning its attempt."""

    delay: _Span = 0
