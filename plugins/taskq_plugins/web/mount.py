"""The page of an app of this very program: within its own web app, or beside a worker."""

from __future__ import annotations

import contextlib
import logging
from threading import Thread
from typing import TYPE_CHECKING

from taskq_plugins.web.door import ENTRY, Place
from taskq_plugins.web.keys import Keys, kept_root
from taskq_plugins.web.serving import listen, server_of
from taskq_plugins.web.site import make_site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from taskq import TaskQ


def taskq_web(
    app: TaskQ,
    *,
    allow_actions: bool = False,
    allows: Callable[[Request], bool] | None = None,
) -> ASGIApp:
    """Show the app's page within a web app, which mounts what this gives.

    ``site.mount("/taskq", taskq_web(app, allows=is_admin))``

    Args:
        app: whose log it shows.
        allow_actions: whether it has buttons that change it.
        allows: whether the one who asks may look, by the web app's own login. None: who opens the
            address that is told to the log once, as with ``taskq web``; that fits one process.
    """
    keys = Keys(root=kept_root(str(app.data_dir)))
    if allows is None:
        line = "the page of taskq: below where it is mounted open %s?token=%s, once"
        logging.getLogger("taskq").warning(line, ENTRY, keys.entry())
    place = Place(scheme="http", hosts=(), allow_actions=allow_actions, allows=allows)
    return make_site(str(app.data_dir), place, keys, app)


@contextlib.contextmanager
def worker_page(app: TaskQ) -> Iterator[str]:
    """Show the app's page on a thread while the block runs; gives the address to open, once.

    Raises:
        TaskqError: nobody may listen here.
    """
    keys = Keys(root=kept_root(str(app.data_dir)))
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        place = Place(scheme="http", hosts=hosts, allow_actions=True)
        server = server_of(make_site(str(app.data_dir), place, keys, app), None)
        thread = Thread(target=server.run, args=([listener],), name="taskq-web")
        thread.start()
        try:
            yield f"{place.address}{ENTRY}?token={keys.entry()}"
        finally:
            server.should_exit = True
            thread.join()
