"""Entry points of packages, found by name: executors, services of a worker, plugins of an app."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

from taskq import TaskQ, errors, extras

_log: Final = logging.getLogger("taskq.worker")
_GROUP: Final = "taskq.plugins"
#: Apps whose plugins were taken up: each is called once, however many workers an app has.
_PLUGGED: Final[weakref.WeakSet[TaskQ]] = weakref.WeakSet()


def plug_in(app: TaskQ) -> None:
    """Call the plugins in the app's settings; their errors are logged by name."""
    settings = vars(app).get("settings")  # an app with no settings read none
    if settings is None or not settings.plugins or app in _PLUGGED:
        return
    plugins = {name: find_plugin(_GROUP, name) for name in settings.plugins}
    _PLUGGED.add(app)
    for name, plugin in plugins.items():
        try:
            plugin(app)
        except Exception:  # noqa: BLE001 - a plugin is somebody else's code
            _log.exception("the plugin %s failed; the worker goes on without it", name)


def find_plugin(group: str, name: str, extra: str | None = None) -> Any:
    """Return the object of an entry point.

    Args:
        group: "taskq.executors", "taskq.services", "taskq.plugins".
        name: of the entry.
        extra: of this distribution, for its own entries; None for other packages'.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - 20 ms that most workers need not

    kind = group.partition(".")[2].removesuffix("s")
    points = {point.name: point for point in entry_points(group=group)}
    if name not in points:
        remedy = (
            "install the package that brings it" if extra is None else extras.install_line(extra)
        )
        known = ", ".join(sorted(points)) or f"none: {remedy}"
        raise errors.UsageError(f"there is no {kind} {name!r}; known are: {known}")
    try:
        return points[name].load()
    except ImportError as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        needs = "" if extra is None else f": {extras.install_line(extra)}"
        kind_of_error = errors.TaskqError if extra is None else errors.UsageError
        raise kind_of_error(
            f"the {kind} {name!r} does not load ({detail}). Install what it needs{needs}"
        ) from error
