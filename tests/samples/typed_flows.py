"""Flows that the type checker accepts, and some that it must not; see ``tests/app/test_typing``."""

from __future__ import annotations

from typing import assert_type

from taskq import Failed, Flow, FlowHandle, Step, TaskQ, chain, chord, group

app = TaskQ("./data")


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task
async def parse(page: bytes, strict: bool = False) -> int:
    return len(page) + strict


@app.task
def total(numbers: list[int], more: int = 0) -> float:
    return sum(numbers) + more


@app.task
def count(pages: list[bytes | Failed]) -> int:
    return len(pages)


async def good() -> None:
    assert_type(parse.step(strict=True), Step[bytes, int])
    assert_type(chain(fetch.call("a")), Flow[bytes])
    assert_type(chain(fetch.call("a"), parse.step()), Flow[int])
    assert_type(chain(fetch.call("a"), fetch.call("b"), parse.step(True)), Flow[int])
    assert_type(group(fetch.call(url) for url in "abc"), Flow[list[bytes]])
    assert_type(group(parse.step(), parse.step()), Step[bytes, list[int]])
    assert_type(fetch.map(["a", "b"]), Flow[list[bytes]])
    pages = [chain(fetch.call(url), parse.step()) for url in "abc"]
    flow = chord(pages, total.step(more=1))
    assert_type(flow, Flow[float])
    assert_type(chord([fetch.call("a")], count.step(), on_failure="run"), Flow[int])
    assert_type(chord(fetch.map("ab"), count.step(), on_failure="run"), Flow[int])
    assert_type(chord(group(pages), total.step()), Flow[float])
    assert_type(chord(group(parse.step(), parse.step()), total.step()), Step[bytes, float])
    assert_type(chain(group(pages), total.step()), Flow[float])
    handle = await flow.enqueue()
    assert_type(handle, FlowHandle[float])
    assert_type(await handle.result(), float)
    assert_type(await app.enqueue_flow(flow), FlowHandle[float])


async def bad() -> None:
    parse.step(strict="yes")  # E: arg-type
    parse.step(True, False)  # E: call-arg
    chain(fetch.call("a"), total.step())  # E: misc
    chord([fetch.call("a")], total.step())  # E: misc
    chord(fetch.map("ab"), total.step())  # E: misc
    chain(parse.step(), parse.step())  # E: misc
