"""A slow, expensive model: a local HTTP server that takes a moment and writes a bill."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

#: Tool calls before the answer: (tool, argument).
PLAN: Final = (("search", "height of Fuji"), ("search", "height of Aso"), ("subtract", "3776 1592"))


class Model(ThreadingHTTPServer):
    """Returns one tool call after the other, then the answer, and bills each response.

    Args:
        seconds: duration of a response.
        stops_at: number of the request that waits until ``goes_on`` is set.

    Attributes:
        asked: semaphore, released at each request.
        bill: responses by the keys of the requests; requests with one key are billed once.
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
            model.goes_on.wait(None if is_held else model.seconds)  # thinking time
            model.bill[key] = model.answer(messages)
        body = json.dumps(model.bill[key]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...
