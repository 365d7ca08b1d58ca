"""Build the site of the documents; a broken link or an undocumented name is an error.

    python -m tests.docs [DIRECTORY]    dist/docs unless given; open its index.html

It needs the extra `docs`. Its pages are the documents of the repository and the public docstrings;
``.docs/mkdocs.yml`` arranges them, ``.docs/assemble.py`` makes them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import griffe

ROOT: Final = Path(__file__).parents[1]


def public_modules() -> tuple[str, ...]:
    spec = importlib.util.spec_from_file_location("assemble", ROOT / ".docs/assemble.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    modules: tuple[str, ...] = module.MODULES
    return modules


def undocumented() -> Iterator[str]:
    paths = [str(ROOT), str(ROOT / "workers")]
    loader = griffe.GriffeLoader(search_paths=paths)
    loader.load("taskq")
    loader.load("taskq_workers")
    loader.resolve_aliases(external=False)
    for module in public_modules():
        loaded: Any = loader.modules_collection[module]
        for name in loaded.exports or ():
            thing = loaded.members.get(str(name))
            if thing is None or (thing.is_alias and not thing.resolved):
                continue  # a name of Python's own
            if thing.is_class or thing.is_function:
                if not thing.has_docstring:
                    yield f"{module}.{name}"
                members = thing.members.values() if thing.is_class else ()
                for member in members:
                    called = member.is_function or "property" in member.labels
                    if called and member.name[0] != "_" and not member.has_docstring:
                        yield f"{module}.{name}.{member.name}"


def build(directory: Path) -> int:
    """Build the site, and return the exit code of MkDocs; a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir"]
    return subprocess.run(
        [*command, str(directory), "-f", str(ROOT / ".docs/mkdocs.yml")],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    ).returncode


def main() -> int:
    missing = sorted(set(undocumented()))
    for name in missing:
        print(f"{name} has no docstring")  # noqa: T201 - a program's output
    directory = Path(sys.argv[1] if sys.argv[1:] else ROOT / "dist/docs").resolve()
    status = build(directory)
    if not status and not missing:
        print(f"{directory}/index.html")  # noqa: T201 - as above
    return status or bool(missing)


if __name__ == "__main__":
    sys.exit(main())
