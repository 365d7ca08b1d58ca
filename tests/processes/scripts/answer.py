"""Hold a log open and obey the lines on stdin; print each answer.

Usage: answer.py DIRECTORY OPTION=VALUE...   (options of LogConfig)

enqueue BODY | claim | settle | outcome LSN | waits | close | exit
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from taskq.core.errors import TaskqError
from taskq.core.model import Durability
from taskq.core.records import Kind
from taskq.log.config import LogConfig
from taskq.log.machine.threads import Pending
from taskq.log.requests import ClaimRequest, Delivery, EnqueueSpec, Settlement
from taskq.log.store.store import Store, open_store

SPEC = EnqueueSpec()


def tell(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def read_config(options: list[str]) -> LogConfig:
    values: dict[str, Any] = dict(option.split("=") for option in options)
    if "lock_wait_seconds" in values:
        values["lock_wait_seconds"] = float(values["lock_wait_seconds"])
    values["exclusive"] = values.get("exclusive") == "True"
    values["durability"] = Durability(values.get("durability", "os"))
    return LogConfig(**values)


class Session:
    """A process's requests to the log."""

    def __init__(self, store: Store) -> None:
        self.port = store.thread_port
        self.held: list[Delivery] = []

    def enqueue(self, body: str) -> None:
        tell(f"enqueued {self.port.enqueue(SPEC, body.encode()).result()}")

    def claim(self, count: str = "1") -> None:
        future: Pending[list[Delivery]] = self.port.claim(ClaimRequest(int(count)))
        tell("waiting")
        for delivery in future.result():
            body = delivery.payload.decode()
            ago = time.monotonic_ns() - int(body) if body.isdecimal() else 0
            tell(f"claimed {delivery.job} {delivery.attempt} {ago} {body}")
            self.held.append(delivery)

    def settle(self) -> None:
        done = [Settlement(Kind.SUCCEEDED, job) for job in self.held]
        self.held = []
        tell(f"settled {self.port.settle(done).result()}")

    def outcome(self, lsn: str) -> None:
        future = self.port.outcome(int(lsn))
        tell("waiting")
        result = future.result()
        body = (result.body or b"").decode()
        ago = time.monotonic_ns() - int(body) if body.isdecimal() else 0
        tell(f"outcome {result.state.name} {ago} {body}")


def main() -> None:
    path, *options = sys.argv[1:]
    try:
        store = open_store(path, read_config(options))
    except TaskqError as error:
        tell(f"refused {type(error).__name__}: {error}")
        return
    tell(f"open {store.owner}")
    session = Session(store)
    for line in sys.stdin:
        word, *operands = line.split()
        if word == "exit":
            return
        try:
            if word == "close":
                store.close()
                tell("closed")
            else:
                getattr(session, word)(*operands)
        except TaskqError as error:
            tell(f"error {type(error).__name__}: {error}")


main()
