"""An agent: a model names tools to use until it knows the answer. Each of its answers is a step.

A crash loses at most the answer on its way, since earlier, paid answers are in the log. Run it by
``python -m examples.agent``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from taskq import TaskQ, durable, retry

if TYPE_CHECKING:
    from collections.abc import Callable

app = TaskQ()
#: Turns of one question at most, since a model without end is expensive.
TURNS_MAX: Final = 20


@dataclass
class Message:
    """A message, perhaps with a tool to use."""

    role: str
    content: str
    tool: str = ""
    argument: str = ""


@durable.as_step(retry=retry.exponential(attempts=5), timeout="90s")
async def think(messages: list[Message]) -> Message:
    """Ask the model; a failed try is repeated, and does not use an attempt of the question."""
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(
            os.environ["MODEL_URL"],
            json=[message.__dict__ for message in messages],
            headers={"Idempotency-Key": durable.key()},  # the same key in every try of this answer
        )
    return Message(**answer.raise_for_status().json())


def search(words: str) -> str:
    return {"height of Fuji": "3776 m", "height of Aso": "1592 m"}[words]


def subtract(numbers: str) -> str:
    left, right = map(int, numbers.split())
    return str(left - right)


TOOLS: Final[dict[str, Callable[[str], str]]] = {"search": search, "subtract": subtract}


@app.task(retry=10)
async def ask(question: str) -> str:
    """Answer a question in several turns with the model."""
    messages = [Message("user", question)]
    for _ in range(TURNS_MAX):
        answer = await think(messages)
        if not answer.tool:
            return answer.content
        result = await durable.step(answer.tool, TOOLS[answer.tool], answer.argument)
        messages += [answer, Message("tool", result)]
    raise ValueError(f"no answer after {TURNS_MAX} turns")
