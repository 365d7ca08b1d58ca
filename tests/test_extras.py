"""What messages tell people to install is ours, and what they run is, too."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskq.extras import install_line, missing

ROOT = Path(__file__).parents[1]
FOLDERS = ("taskq", "workers", "plugins", "examples", "tests")
#: What pip would look up at an index: our own name without the place that it comes from.
LOOKED_UP = re.compile(r"pip install [^`\n&]*\btaskq(-local)?\b(?!/)(?!.* @ )")


def folder(*, editable: bool) -> dict[str, Any]:
    return {"url": "file:///a%20b/taskq", "dir_info": {"editable": editable}}


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (folder(editable=True), "pip install -e '/a b/taskq[zstd]'"),
        (folder(editable=False), "pip install '/a b/taskq[zstd]'"),
        (
            {"url": "file:///x/taskq_local-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install '/x/taskq_local-0.1.0-py3-none-any.whl[zstd]'",
        ),
        (
            {"url": "https://x.test/t.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            "pip install 'taskq-local[zstd] @ git+https://x.test/t.git@1f'",
        ),
        (
            {"url": "https://x.test/t.whl", "archive_info": {}},
            "pip install 'taskq-local[zstd] @ https://x.test/t.whl'",
        ),
        (None, "pip install 'PATH/TO/THE/CLONE[zstd]'"),
    ],
)
def test_an_extra_is_installed_from_where_taskq_came(
    told: dict[str, Any] | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never by a name alone, which anybody may register at an index."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if told is None else json.dumps(told)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Distribution())
    assert install_line("zstd") == line
    assert shlex.split(install_line()) == shlex.split(line.replace("[zstd]", ""))


def test_a_message_names_package_and_extra() -> None:
    told = missing("--reload", "watchfiles", "reload")
    assert told == (
        f"--reload needs the package watchfiles, of the extra 'reload': {install_line('reload')}"
    )


def test_one_module_alone_tells_how_to_install_taskq() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name in ("taskq", "workers", "plugins")
        for path in (ROOT / name).rglob("*.py")
        if path.name not in {"extras.py", "taskq_start.py"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"pip install|taskq-local", node.value)
    ]
    assert named == []


def test_no_document_has_pip_look_our_name_up() -> None:
    documents = [path for name in FOLDERS for path in (ROOT / name).rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in [ROOT / "README.md", *documents]
        for line in path.read_text().splitlines()
        if LOOKED_UP.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("code", ["class Queue: ...\n", "__all__ = ['Queue']\n"])
def test_another_package_of_our_name_is_refused_with_a_line(tmp_path: Path, code: str) -> None:
    """As an index has one: installed besides, its files come before ours, or in their place."""
    other = tmp_path / "taskq"
    other.mkdir()
    (other / "__init__.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", "from taskq_start import main; main()", "ls"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"taskq: {other / '__init__.py'} hides this taskq")
