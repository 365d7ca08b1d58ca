"""Where the tasks are when an app has none: the modules beside it, read and not imported."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from taskq.values import command

#: Folders and files that are looked at, and the size of files that are not.
_FOLDERS_MAX: Final = 200
_FILES_MAX: Final = 1_000
_FILE_BYTES_MAX: Final = 1_000_000
_NAMED_MAX: Final = 4
_IMPORT: Final = re.compile(r"^from taskq import .*\btask\b(?: as (\w+))?", re.MULTILINE)
#: Folders that hold no module of the project.
_NOT_OURS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "tests", "test"})


def without_tasks(target: str, directory: str) -> str:
    """Return what to tell who started a worker with an app that has no task.

    Args:
        target: ``module:app`` or ``module``, imported by now.
        directory: of the app's log.
    """
    head = f"{target} has an app, but no task is registered with it"
    modules = _beside(target.partition(":")[0])[:_NAMED_MAX]
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
        f"{command(directory, 'worker', target, *words)}"
    )


def modules_with_tasks(folder: Path, package: str) -> list[str]:
    """Return the modules in a folder, and in those below it, that seem to define tasks.

    Args:
        folder: where to look; at most 1 000 files are read.
        package: what it is called; "" if it is no package.
    """
    modules: list[str] = []
    for file in islice(_modules(folder), _FILES_MAX):
        names = [*package.split("."), *file.relative_to(folder).with_suffix("").parts]
        name = ".".join(part for part in names if part and part != "__init__")
        if name and _defines_tasks(file):
            modules.append(name)
    return sorted(modules)


def _beside(module: str) -> list[str]:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return []
    top = module.partition(".")[0]
    paths = getattr(sys.modules.get(top), "__path__", None)
    folder, package = (Path(next(iter(paths))), top) if paths else (Path(file).parent, "")
    return [name for name in modules_with_tasks(folder, package) if name != module]


def _modules(folder: Path) -> Iterator[Path]:
    """Yield files of modules, the nearest first: the folder may be somebody's whole home."""
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
    """Return whether a function there is decorated with ``@app.task``, whatever the app's name."""
    try:
        text = file.read_text("utf-8") if file.stat().st_size <= _FILE_BYTES_MAX else ""
    except (OSError, ValueError):
        return False
    bare = _IMPORT.search(text)
    names = r"[\w.]+\.task" + (f"|{bare[1] or 'task'}" if bare else "")
    decorated = rf"^@({names})\b.*?^(?:async )?def \w"
    return re.search(decorated, text, re.MULTILINE | re.DOTALL) is not None
