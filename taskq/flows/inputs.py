"""Payloads of jobs: decompressed, with the inputs' results as a step's first argument."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskq.calls.call import AppPort
from taskq.connection.connection import Connection
from taskq.core import errors, model
from taskq.log.format.flows import Takes, is_of_flow, takes_of
from taskq.log.requests import Delivery

if TYPE_CHECKING:
    from taskq.log.read.flows import InputEnd

#: Most bytes of the results that one job takes.
INPUT_BYTES_MAX: Final = 64 * 1024 * 1024
_REASON_CHARACTERS_MAX: Final = 1_024


class Inputs:
    """Reads payloads, and adds the inputs of a flow's steps."""

    def __init__(self, app: AppPort[Connection]) -> None:
        self._app = app

    @staticmethod
    def needed(delivery: Delivery) -> bool:
        """Return whether the payload differs from the body of the job's record."""
        return bool(delivery.payload_flags) or is_of_flow(delivery.record)

    async def payload(self, delivery: Delivery) -> bytes:
        """Return the job's payload for its task.

        Raises:
            LogDamaged: the result of an input is gone, or the payload is damaged.
            PayloadTooLarge: the inputs' results are over INPUT_BYTES_MAX together.
            InvalidCall: the task no longer has a first parameter.
        """
        body = await self._app._connection.packer.payload(delivery)
        if not is_of_flow(delivery.record):
            return body
        takes = takes_of(delivery.record)
        if not takes.shape:
            return body
        names = self._app.tasks[delivery.task].signature.names
        if not names:
            raise errors.InvalidCall(delivery.task, "it has no first parameter for its input")
        from taskq.core.flows import nested  # noqa: PLC0415 - most jobs take in no results

        results = await self._results(delivery, takes)
        value = _json(nested(takes.shape, results))
        return _with_first(names[0], value, body)

    async def _results(self, delivery: Delivery, takes: Takes) -> list[bytes]:
        from taskq.log.read.flows import ENDS_MAX, look_at_ends  # noqa: PLC0415 - as above

        connection = self._app._connection
        results: list[bytes] = []
        size = 0
        for start in range(0, len(takes.inputs), ENDS_MAX):
            jobs = list(takes.inputs[start : start + ENDS_MAX])
            port = await connection.port()
            ends = await port.look(partial(look_at_ends, jobs=jobs))
            for end in ends:
                result = await self._result(delivery, takes, end)
                size += len(result) + 1
                if size > INPUT_BYTES_MAX:
                    raise errors.PayloadTooLarge(
                        f"what {delivery.task} {delivery.job_id} takes in of "
                        f"{len(takes.inputs)} jobs",
                        size,
                        INPUT_BYTES_MAX,
                        "let them write files and return their paths",
                    )
                results.append(result)
        return results

    async def _result(self, delivery: Delivery, takes: Takes, end: InputEnd) -> bytes:
        from taskq.core.flows import Policy  # noqa: PLC0415 - as above

        job_id = delivery.tag.id(end.job)
        if end.state is model.State.SUCCEEDED:
            if end.body is None:
                return b"null"
            what = f"the result of job {job_id}"
            return await self._app._connection.packer.unpacked(end.body, end.flags, what)
        if takes.policy is Policy.RUN:
            return _failed(job_id, end)
        how = "is gone" if end.state is model.State.ABSENT else f"is {end.state.name.lower()} again"
        raise errors.LogDamaged(
            f"{delivery.job_id} takes in the result of job {job_id}, which {how}"
        )


def _failed(job_id: str, end: InputEnd) -> bytes:
    from pydantic_core import to_json  # noqa: PLC0415 - slow to import

    reason = end.state.name.lower()
    if end.state is model.State.DEAD:
        reason = (end.body or b"").decode("utf-8", "replace")[:_REASON_CHARACTERS_MAX]
    elif end.state is model.State.ABSENT:
        reason = "purged"
    elif end.state in model.LIVE_STATES:
        reason = "requeued"
    return to_json({"job_id": job_id, "reason": reason, "failed": True})


def _json(value: Any) -> bytes:
    """Join nested lists of JSON texts."""
    if isinstance(value, bytes):
        return value
    return b"[" + b",".join(map(_json, value)) + b"]"


def _with_first(name: str, value: bytes, body: bytes) -> bytes:
    """Return the JSON object with another member in front."""
    from pydantic_core import to_json  # noqa: PLC0415 - slow to import

    rest = body.strip()[1:]
    separator = b"" if rest.lstrip() == b"}" else b","
    return b"{" + to_json(name) + b":" + value + separator + rest
