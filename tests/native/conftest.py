"""The extension, compiled here as strictly as can be, and both ways of every scenario."""

import importlib.machinery
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskq import _native as native
from taskq._native import build

#: Lets what follows run in C, or in Python.
Choose = Callable[[bool], None]

#: No warning passes, except in CPython's own headers.
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wno-sign-conversion", "-Wshadow")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the extension's file, compiled of the sources as they are, with NATIVE_FLAGS."""
    compiler = str(sysconfig.get_config_var("CC")).split()[0]
    if shutil.which(os.environ.get("CC", compiler)) is None:
        pytest.skip("there is no C compiler")
    flags = os.environ.get("NATIVE_FLAGS", "").split()
    path = build.compiled(tmp_path_factory.mktemp("native"), *STRICT, *flags)
    assert path is not None, "the extension does not compile without a warning"
    return path


def load(path: Path) -> ModuleType:
    name = "taskq._native._plain"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def extension(library: Path) -> Any:
    return load(library)


@pytest.fixture
def choose(extension: Any, monkeypatch: pytest.MonkeyPatch) -> Choose:

    def choose(in_c: bool) -> None:
        monkeypatch.setattr(native, "is_on", in_c)
        monkeypatch.setattr(native, "plain", extension if in_c else None)

    return choose
