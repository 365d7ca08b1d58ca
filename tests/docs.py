"""Build the site of the documents; a broken link is an error.

    python -m tests.docs [DIRECTORY]    dist/docs unless given; open its index.html

The build needs the extra `docs`. The pages are the documents of the repository and the public
docstrings. ``.docs/mkdocs.yml`` arranges the pages, ``.docs/assemble.py`` makes them.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(directory: Path) -> int:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir"]
    return subprocess.run(
        [*command, str(directory), "-f", str(ROOT / ".docs/mkdocs.yml")],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    ).returncode


def main() -> int:
    directory = Path(sys.argv[1] if sys.argv[1:] else ROOT / "dist/docs").resolve()
    status = build(directory)
    if not status:
        print(f"{directory}/index.html")  # noqa: T201 - a program's output
    return status


if __name__ == "__main__":
    sys.exit(main())
