"""The pages: made on this side, readable without scripts."""

from __future__ import annotations

import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from taskq.cli import render
from taskq.cli.commands.jobs import STATES, served
from taskq_plugins.web.door import ENTRY
from taskq_plugins.web.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from taskq.log.read.reader import LogReader
    from taskq_plugins.web.door import Keys, Place
    from taskq_plugins.web.looks import Looks

_HERE: Final = Path(__file__).parent
_STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript"}


class Pages:
    """Makes pages of what the log says.

    Args:
        looks: reads the log.
        place: where the pages are found.
        keys: what shows who asks.
    """

    def __init__(self, looks: Looks, place: Place, keys: Keys) -> None:
        self._looks = looks
        self._place = place
        self._keys = keys
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            # All that a log holds was written by others: nothing is a page's own but the template.
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "ago": lambda moment_ns: render.when(moment_ns, time.time_ns()),
            "span": render.precise,
            "size": render.size,
            "plain": render.printable,
            "served": served,
        }
        files = {name: (_HERE / "static" / name).read_bytes() for name in _STATIC}
        self._files = files

    def routes(self) -> list[Route]:
        """Every page there is."""
        return [
            Route(ENTRY, self._enter),
            Route("/", self._now),
            Route("/static/{name}", self._file),
        ]

    def refusal(self, problem: Problem) -> Response:
        """A page that says what is wrong."""
        return self._page("problem.html", status=problem.status, problem=problem)

    async def _enter(self, request: Request) -> Response:
        if not self._keys.enter(request.query_params.get("token", "")):
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "this address was used before, or is not the one that taskq web printed: start it "
                "again for a new one",
            )
        # A redirect would count as one from wherever the address was opened, and without a cookie.
        response = self._page("entered.html")
        response.headers["Set-Cookie"] = self._place.cookie_header(self._keys.session)
        return response

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no file {name!r:.80} here")
        return Response(self._files[name], media_type=_STATIC[name])

    async def _now(self, _request: Request) -> Response:
        return self._page("now.html", **await self._looks.read(_now))

    def _page(self, template: str, status: HTTPStatus = HTTPStatus.OK, **told: Any) -> HTMLResponse:
        text = self._templates.get_template(template).render(
            directory=self._looks.path,
            allow_actions=self._place.allow_actions,
            form_token=self._keys.form,
            now_ns=time.time_ns(),
            states=tuple(STATES),
            **told,
        )
        return HTMLResponse(text, status)


def _now(reader: LogReader) -> dict[str, Any]:
    return {"stats": reader.stats(), "owners": reader.owners()}
