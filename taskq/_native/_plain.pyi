from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Token
from typing import Any, final

VERSION: int
BUILD: str

@final
class Rest(Coroutine[Any, None, Any]):
    def send(self, value: None, /) -> Any: ...
    def throw(self, typ: Any, val: Any = ..., tb: Any = ..., /) -> Any: ...
    def close(self) -> None: ...
    def __await__(self) -> Any: ...

@final
class Encoder:
    def __init__(
        self,
        names: tuple[str, ...],
        validate: Callable[[dict[str, Any]], dict[str, Any]],
        dump: Callable[[dict[str, Any]], bytes],
        slow: Callable[[tuple[Any, ...], dict[str, Any]], bytes],
        large: Callable[[tuple[Any, ...], dict[str, Any], bytes], bytes],
        flat_bytes: int,
    ) -> None: ...
    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bytes: ...

@final
class Decoder:
    def __init__(
        self,
        validate: Callable[[bytes], dict[str, Any]],
        slow: Callable[[bytes], tuple[tuple[Any, ...], dict[str, Any]]],
    ) -> None: ...
    def __call__(self, payload: bytes, /) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

def submit(
    connection: Any,
    task: Any,
    spec: Any,
    mailbox_max: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> Any: ...
def new_handle(kind: type[Any], app: Any, task: Any, tag: str, lsn: int, /) -> Any: ...
def answer_all(pairs: Iterator[tuple[Any, Any]], /) -> None: ...
def run_jobs(
    slot: Any, turn: float, token: Token[Any] | None, hot: tuple[Any, ...], /
) -> tuple[Token[Any] | None, Any]: ...
def take(
    line: list[Any], room: int, record_bytes: int, /
) -> tuple[list[Any], list[bytes], list[Any]] | None: ...
def born_records(
    tail: bytes | list[bytes], bodies: Sequence[bytes], lsn: int, location: int, /
) -> tuple[list[bytes], bytes, int] | None: ...
def plain_records(
    head: bytes, attempts: Sequence[int], jobs: Sequence[int], last: Sequence[int] | int, /
) -> bytes | None: ...
def whole_records(
    data: bytes,
    first: int,
    kind: int,
    size_min: int,
    whole: int,
    locations: Sequence[int],
    jobs: Sequence[int],
    /,
) -> list[bytes] | None: ...
def claimed(
    kind: type[Any],
    tag: str,
    epoch: int,
    owner: int,
    token: int,
    jobs: list[int],
    attempts: list[int],
    lanes: list[Any],
    records: list[bytes],
    running: dict[int, tuple[int, int, int]],
    /,
) -> list[Any] | None: ...
def unclaimed(
    deliveries: list[Any], owner: int, running: dict[int, tuple[int, int, int]], /
) -> tuple[list[int], list[int], list[int]] | None: ...
