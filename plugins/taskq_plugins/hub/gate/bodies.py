"""How the body of a request is taken in: so fast at least, and bytes of a log in pieces of a MiB.

Each piece is done as a request of its own, which goes on behind what the one before it came to, so
that one is checked and written while the next is on its way.
"""

from __future__ import annotations

import zlib
from asyncio import get_running_loop, timeout
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from taskq_plugins.hub.messages import Again, Answer, Append, Enrol, Missing, Stored
from taskq_plugins.hub.messages import Request as Asked
from taskq_plugins.hub.wire import PACKED, PROTOCOL, OtherProtocol, Way, delivered

#: A body that comes slowly does not become larger than that without room.
_SMALL_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 1024 * 1024
#: How long a body may come at most, and one that comes slower than a KiB a second.
BODY_SECONDS: Final = 600.0
_SLOW_SECONDS: Final = 15.0
_SLOW_BYTES: Final = 1_024


class Body:
    """A body on its way.

    Args:
        request: whose it is.
        way: what kind of request.
        room: waits until there is memory for a large one.

    Attributes:
        pieces: what came last.
        is_over: nothing more comes.
        is_whole: all came that was to.
    """

    def __init__(self, request: Request, way: Way, room: Callable[[], Awaitable[None]]) -> None:
        self._stream, self._limit, self._room = request.stream(), way.bytes_max, room
        self._most = _PIECE_BYTES if way.has_frames else way.bytes_max + 1
        self._size, self._passed = 0, 0.0
        self.pieces: list[bytes] = []
        self.is_over, self.is_whole = False, True

    async def read(self) -> None:
        pieces: list[bytes] = []
        size, begin = 0, get_running_loop().time() - self._passed
        try:
            async with timeout(None) as limit:
                while size < self._most:
                    patience = min(_SLOW_SECONDS + self._size / _SLOW_BYTES, BODY_SECONDS)
                    limit.reschedule(begin + patience)
                    data = await anext(self._stream)
                    size += len(data)
                    self._size += len(data)
                    if self._size > self._limit:  # it said that it was shorter
                        self.is_over, self.is_whole = True, False
                        break
                    if self._size - len(data) <= _SMALL_BYTES < self._size:
                        limit.reschedule(None)
                        waits = get_running_loop().time()
                        await self._room()
                        begin += get_running_loop().time() - waits
                    pieces.append(data)
        except StopAsyncIteration:
            self.is_over = True
        except (ClientDisconnect, TimeoutError):
            self.is_over, self.is_whole = True, False
        self._passed = get_running_loop().time() - begin
        self.pieces = pieces


class Intake:
    """Do what the pieces of one body ask for, on a thread."""

    def __init__(self, request: Request, way: Way) -> None:
        self._request, self._way, self._left = request, way, way.bytes_max
        is_packed = way.has_frames and request.headers.get("content-type") == PACKED
        self._inflate = zlib.decompressobj() if is_packed else None
        self._asked: Asked | Enrol | None = None
        self._rest = b""

    def ask(self, pieces: list[bytes], *, is_last: bool, is_whole: bool) -> Asked | Enrol:
        """Return what is asked for by what came and what was left before.

        A packed body is read as far as it reads back, and up to what its way takes.

        Raises:
            HTTPException: it is no request.
        """
        if not is_whole and Append not in self._way.asks:
            raise HTTPException(408, "its body came too slowly: try again later")
        try:
            if self._inflate is not None:
                pieces = [self._inflate.decompress(b"".join(pieces), max(self._left, 1))]
            self._left -= sum(map(len, pieces))
            asked = self._read(b"".join((self._rest, *pieces)))
        except OtherProtocol as error:
            raise HTTPException(426, f"this hub speaks protocol {PROTOCOL}") from error
        except (ValueError, zlib.error) as error:
            raise HTTPException(400, f"that is no request of protocol {PROTOCOL}") from error
        self._asked = asked
        if isinstance(asked, Again) and not is_last:
            return replace(asked, is_last=False)
        return asked

    def _read(self, data: bytes) -> Asked | Enrol:
        if isinstance(self._asked, Append | Again):
            return replace(self._asked, data=data)
        request = self._request
        asked = delivered(request.method, request.url.path, request.headers, data)
        if asked is None:
            raise HTTPException(404, "not found")
        return asked

    def goes_on(self, answer: Answer) -> bool:
        asked = self._asked
        if isinstance(asked, Append) and isinstance(answer, Stored):
            behind, at, self._rest = asked.behind, answer.at, asked.data
            if at.segment == behind.segment:
                self._rest = asked.data[at.offset - behind.offset :]
                self._asked = replace(asked, behind=at)
            return True
        if isinstance(asked, Again) and isinstance(answer, Missing):
            offset = asked.offset + len(asked.data)
            self._asked = replace(asked, offset=offset)
            return answer.files == ((asked.name, offset),)
        return False
