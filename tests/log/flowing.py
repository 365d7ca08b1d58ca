"""Flows of jobs that no task owns, for tests of the log."""

from __future__ import annotations

from typing import Any

from taskq.calls.call import Options, make_call
from taskq.core.flows import Policy
from taskq.core.records import Flag
from taskq.flows.flow import Chain, Flow, Leaf, Node, Parallel, plan_of


def call(name: str = "part") -> Any:
    return make_call(name, None, b"{}", Flag(0), Options())


def leaf() -> Leaf:
    return Leaf(call())


def step() -> Leaf:
    return Leaf(call("step"), takes=True)


def items_of(node: Node) -> list[Any]:
    return [(call.spec, call.body, call.extras) for call in plan_of(Flow(node)).calls]


def chord(count: int, policy: Policy = Policy.CANCEL) -> Chain:
    return Chain((Parallel(tuple(leaf() for _ in range(count))), step()), policy)
