"""Find the TaskQ named ``module:app`` on a command line, or explain why it was not found."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import sys
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from taskq import Task, TaskQ, errors, extras, hooks, values
from taskq_workers.runs.reasons import is_machinery, user_traceback

_FRAMES_MAX: Final = 4


def load_app(target: str, include: Iterable[str] = ()) -> TaskQ:
    """Import ``module:attribute`` or ``module``, with the working directory first on the path.

    ``include`` names modules with further tasks of the app.
    """
    module_name, colon, attribute = target.partition(":")
    if module_name.endswith(".py") or "/" in target:
        raise errors.UsageError(
            f"{target!r} is a path: give the module's name, {_as_module(target)!r}"
        )
    if not module_name or (colon and not attribute):
        raise errors.UsageError(
            f"{target!r} is not of the form module:app, for example shop.jobs:app"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    _refuse_hidden(module_name.partition(".")[0])
    module = _import(module_name)
    app = _app_named(module, attribute) if attribute else _only_app(module)
    app.hooks.include(include)
    import_included(app)
    return app


def _refuse_hidden(name: str) -> None:
    """Refuse a file of the working directory if a loaded module with its name hides it."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    files = [path for path in (Path(name, "__init__.py"), Path(f"{name}.py")) if path.is_file()]
    if loaded and files and not (own := files[0]).samefile(loaded):
        raise errors.UsageError(
            f"{own.absolute()} is hidden by {loaded}, which has its name: give yours another"
        )


def import_included(app: TaskQ) -> None:
    """Import the modules that the app includes, so that their tasks are registered with it."""
    main, copy = sys.modules["__main__"], None
    if app.hooks.included and any(value is app for value in vars(main).values()):
        # The modules import the app by its module's name: a second copy would make another app.
        copy = sys.modules.setdefault(hooks.main_module_name(), main)
    for name in app.hooks.included:
        tasks = [task for task in vars(_import(name)).values() if isinstance(task, Task)]
        own = [task.app for task in tasks if task.fn.__module__ == name]
        if own and app not in own:
            raise errors.UsageError(
                f"include: the tasks of {name!r} are registered with another TaskQ, none with "
                f"this: {_other_app(main, copy)}"
            )


def _other_app(main: ModuleType, copy: ModuleType | None) -> str:
    if copy in (main, None):
        return "import the app there from the module that makes it"
    return (
        f"they import {hooks.main_module_name()}, which runs as the program here, and so there "
        f"are two of it; put the app into a module of its own"
    )


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not (name == missing or name.startswith(f"{missing}.")):
            raise _broken(name, error) from error
        raise errors.UsageError(_not_found(name, missing)) from None
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _not_found(name: str, missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    if parent:
        paths = getattr(sys.modules.get(parent), "__path__", [])
        if not paths:
            return f"there is no module {name!r}: {parent!r} is a module and no package"
    else:
        paths = [str(Path.cwd())]
    close = values.nearest(last, sorted(_modules_in(paths)))
    if close:
        meant = f"{parent}.{close}" if parent else close
        return f"there is no module {missing!r}: did you mean {meant!r}?"
    where = f"package {parent!r}" if parent else f"{Path.cwd()} or among the installed packages"
    return f"there is no module {missing!r} in {where}: run this from the folder that holds it"


def _modules_in(paths: Iterable[str]) -> set[str]:
    names = set()
    for folder in map(Path, paths):
        if folder.is_dir():
            names |= {entry.stem for entry in folder.iterdir() if _is_module(entry)}
    return {name for name in names if name.isidentifier()}


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").is_file())


def _as_module(path: str) -> str:
    file, colon, attribute = path.partition(":")
    dotted = file.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
    return f"{dotted}{colon}{attribute}" if attribute else f"{dotted}:app"


def _apps_of(module: ModuleType) -> dict[str, TaskQ]:
    return {name: value for name, value in vars(module).items() if isinstance(value, TaskQ)}


def _app_named(module: ModuleType, attribute: str) -> TaskQ:
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise errors.UsageError(_no_attribute(module, attribute, part))
        value = getattr(value, part)
    if isinstance(value, TaskQ):
        return value
    raise errors.UsageError(
        f"{module.__name__}:{attribute} is of type {type(value).__name__} and no TaskQ"
        f"{_offer(module, 'give')}"
    )


def _no_attribute(module: ModuleType, attribute: str, part: str) -> str:
    apps = _apps_of(module)
    close = values.nearest(part, apps) or next(iter(apps), "") or values.nearest(part, vars(module))
    hint = f": did you mean {module.__name__}:{close}?" if close else _offer(module, "give")
    return f"module {module.__name__!r} has no {attribute!r}{hint}"


def _only_app(module: ModuleType) -> TaskQ:
    apps = _apps_of(module)
    distinct = {id(app): app for app in apps.values()}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if not apps:
        if hooks.default_app.cache_info().currsize:
            # A bare @task has made it.
            return hooks.default_app()
        raise errors.UsageError(f"module {module.__name__!r} has no TaskQ{_offer(module, 'give')}")
    raise errors.UsageError(
        f"module {module.__name__!r} has {len(distinct)} apps{_offer(module, 'say which')}"
    )


def _offer(module: ModuleType, verb: str) -> str:
    names = [f"{module.__name__}:{name}" for name in _apps_of(module)]
    if not names:
        return ": make one there, app = TaskQ(), and give module:app"
    return f": {verb} {' or '.join(names)}"


def _broken(name: str, error: BaseException) -> errors.UsageError:
    """Return the error for a module that raised at its import, with the lines that caused it."""
    trace = _without_import_system(error.__traceback__)
    if isinstance(error, errors.TaskqError):  # an error of taskq: the calling line is enough
        calls = traceback.extract_tb(trace)
        frames = takewhile(lambda call: not is_machinery(call.filename), calls)
        where = "".join(traceback.format_list(list(frames)[-_FRAMES_MAX:]))
        return errors.UsageError(
            f"importing {name!r} failed:\n{where}{type(error).__name__}: {error}"
        )
    traced = traceback.TracebackException(
        type(error), error, trace, limit=-_FRAMES_MAX, compact=True
    )
    traced.__cause__ = traced.__context__ = None
    lines = "".join(traced.format()).rstrip().removeprefix("Traceback (most recent call last):\n")
    return errors.UsageError(f"importing {name!r} failed:\n{lines}")


def _without_import_system(trace: TracebackType | None) -> TracebackType | None:
    trace = user_traceback(trace)
    while trace is not None and _is_import_system(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _is_import_system(path: str) -> bool:
    return path.startswith("<frozen importlib") or path == importlib.__file__


#: Most folders and files that are searched; larger files are skipped.
_FOLDERS_MAX: Final = 200
_FILES_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 1_000_000
_NAMED_MAX: Final = 4
_IMPORT: Final = r"(?m)^from taskq import .*\btask\b(?: as (\w+))?"
#: Folders without modules of the project.
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "tests", "test"})


def without_tasks(target: str, directory: str) -> str:
    """Return the message for a worker whose app has no task."""
    head = f"{target} has an app, but no task is registered with it"
    modules = _modules_near(target.partition(":")[0])[:_NAMED_MAX]
    if not modules:
        return (
            f"{head}: decorate a function with @app.task, there or in a module that is named "
            f"with -I MODULE"
        )
    *others, last = modules
    listed = f"{', '.join(others)} and {last} define" if others else f"{last} defines"
    include = ", ".join(f'"{name}"' for name in modules)
    words = [word for name in modules for word in ("-I", name)]
    return (
        f"{head}: {listed} some. Write TaskQ(include=[{include}]), or: "
        f"{values.command(directory, 'worker', target, *words)}"
    )


def modules_with_tasks(folder: Path, package: str) -> list[str]:
    """Return modules in and below a folder that seem to define tasks; reads at most 1 000 files.

    ``package`` is the folder's name as a package; "" without one.
    """
    modules: list[str] = []
    for file in islice(_modules(folder), _FILES_MAX):
        names = [*package.split("."), *file.relative_to(folder).with_suffix("").parts]
        name = ".".join(part for part in names if part and part != "__init__")
        if name and _defines_tasks(file):
            modules.append(name)
    return sorted(modules)


def _modules_near(module: str) -> list[str]:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return []
    top = module.partition(".")[0]
    paths = getattr(sys.modules.get(top), "__path__", None)
    folder, package = (Path(next(iter(paths))), top) if paths else (Path(file).parent, "")
    return [name for name in modules_with_tasks(folder, package) if name != module]


def _modules(folder: Path) -> Iterator[Path]:
    """Yield files of modules, the nearest first: the folder may be a whole home directory."""
    folders = deque([folder])
    for _ in range(_FOLDERS_MAX):
        if not folders:
            return
        with suppress(OSError):
            for entry in sorted(filter(_is_ours, folders.popleft().iterdir())):
                if entry.suffix == ".py":
                    yield entry
                elif entry.is_dir() and not (entry.is_symlink() or (entry / "pyvenv.cfg").exists()):
                    folders.append(entry)


def _is_ours(path: Path) -> bool:
    name = path.stem
    is_test = name.startswith("test_") or name == "conftest"
    return name.isidentifier() and name not in _NOT_OURS and not is_test


def _defines_tasks(file: Path) -> bool:
    """Return whether the file decorates a function with ``@NAME.task``."""
    try:
        text = file.read_text("utf-8") if file.stat().st_size <= _FILE_BYTES_MAX else ""
    except (OSError, ValueError):
        return False
    bare = re.search(_IMPORT, text)
    names = r"[\w.]+\.task" + (f"|{bare[1] or 'task'}" if bare else "")
    decorated = rf"^@({names})\b.*?^(?:async )?def \w"
    return re.search(decorated, text, re.MULTILINE | re.DOTALL) is not None


_log: Final = logging.getLogger("taskq.worker")
_GROUP: Final = "taskq.plugins"
#: Apps whose plugins were called: each plugin is called once, even with several workers.
_PLUGGED: Final[weakref.WeakSet[TaskQ]] = weakref.WeakSet()


def plug_in(app: TaskQ) -> None:
    """Call the plugins in the app's settings; log their errors by name."""
    settings = vars(app).get("settings")  # an app without settings
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
        name: name of the entry.
        extra: extra of this distribution, for its own entries; None for other packages.
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
