"""A slow, dear model: an HTTP server on this machine that thinks for a moment and writes a bill."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

#: What it wants to know before it answers: (tool, argument).
PLAN: Final = (("search", "height of Fuji"), ("search", "height of Aso"), ("subtract", "3776 1592"))


class Model(ThreadingHTTPServer):
    """Answers one tool call after the other, then the question; bills each answer that it gives.

    Args:
        seconds: how long it thinks.
        stops_at: which request it thinks about until ``goes_on`` is set.

    Attributes:
        asked: is released each time that somebody asks.
        bill: the answers that it gave, by the keys of the requests: one of a key is paid once.
    """

    daemon_threads = True

    def __init__(self, seconds: float = 0.3, stops_at: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seconds, self.stops_at = seconds, stops_at
        self.goes_on = threading.Event()
        self.asked = threading.Semaphore(0)
        self.bill: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, *_: object) -> None: ...
    def answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) < len(PLAN):
            tool, argument = PLAN[len(results)]
            return {"role": "assistant", "content": "", "tool": tool, "argument": argument}
        return {"role": "assistant", "content": f"Fuji is {results[-1]} m higher than Aso."}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        model = self.server
        assert isinstance(model, Model)
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model.asked.release()
        key = self.headers["Idempotency-Key"]
        if key not in model.bill:
            is_held = len(model.bill) + 1 == model.stops_at
            model.goes_on.wait(None if is_held else model.seconds)  # it thinks
            model.bill[key] = model.answer(messages)
        body = json.dumps(model.bill[key]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...
