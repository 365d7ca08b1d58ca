"""A hub in this process, with no line to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from taskq_plugins.hub.device.line import Http, Told

if TYPE_CHECKING:
    from taskq_plugins.hub.server import Server


class Direct(Http):
    """Carries requests to a server that listens nowhere."""

    def __init__(self, server: Server) -> None:
        super().__init__("http://hub")
        self._transport = httpx.ASGITransport(server.app)

    async def __call__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Told:
        """Send a request."""
        async with httpx.AsyncClient(transport=self._transport, base_url="http://hub") as client:
            told = await client.request(method, path, headers=headers, content=body)
        return Told(told.status_code, told.content)
