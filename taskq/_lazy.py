"""Names that a package looks up when somebody asks for them: an import costs what it uses."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import ModuleType
from typing import Any, Final


def lazily(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a face, as ``looking_up``; ``dir`` shows its ``__all__``."""
    face = vars(sys.modules[module])
    face["__dir__"] = lambda: [*face["__all__"]]
    return looking_up(module, homes)


def looking_up(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that imports each of its names from where it is defined.

    Args:
        module: its ``__name__``.
        homes: the module that defines them: their names, parted by spaces; modules stand
            under the name of their package.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def look_up(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if home == module:
            return importlib.import_module(f"{module}.{name}")
        imported = importlib.import_module(home)
        value = getattr(imported, name, None) or importlib.import_module(f"{home}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return look_up


class _Later(ModuleType):
    """Stands for a module while others import it; later access goes to the real module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with _TURN:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Types(_Later):
    """A postponed module of types: an empty class stands for each name meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: dict[str, type] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is not self:
            return super().__getattr__(name)
        return self.made.setdefault(name, type(name, (), {}))


_TURN: Final = Lock()


@contextmanager
def postponed(*modules: _Later) -> Iterator[None]:
    """Put stand-ins for modules in place while the block imports others."""
    later = {module.__name__: module for module in modules if module.__name__ not in sys.modules}
    sys.modules.update(later)
    try:
        yield
    finally:
        for name, module in later.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def import_without_types(package: str, types: str) -> None:
    """Import a package; the module that it takes types from follows when somebody asks for one.

    Args:
        package: its full name.
        types: name of the module in it. The package's own type hints are not evaluated.
    """
    whole = f"{package}.{types}"
    if package in sys.modules or whole in sys.modules:
        return
    later = _Types(whole)
    with postponed(later):
        home = importlib.import_module(package)
    for name, kind in later.made.items():
        if vars(home).get(name) is kind:
            delattr(home, name)
    vars(home)["__getattr__"] = looking_up(package, {package: types, whole: " ".join(later.made)})


def import_without_tls() -> None:
    """Import asyncio; its TLS follows at the first use, and OpenSSL with it: 4 MiB.

    So does ``platform``, which ``uuid`` asks for the system's name alone.
    """
    if "asyncio" not in sys.modules:
        protocol = _Later("asyncio.sslproto")
        with postponed(_Types("ssl"), protocol):
            made = importlib.import_module("asyncio")
        vars(made).setdefault("sslproto", protocol)
    system = _Later("platform")
    vars(system)["system"] = lambda: os.uname().sysname if hasattr(os, "uname") else "Windows"
    with postponed(system):
        importlib.import_module("uuid")
