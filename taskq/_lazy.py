"""Import names of a package at their first use: an import costs only the modules that it uses."""

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
    """Return a package's ``__getattr__``, as ``looking_up`` does, and set its ``__dir__``."""
    face = vars(sys.modules[module])
    face["__dir__"] = lambda: [*face["__all__"]]
    return looking_up(module, homes)


def looking_up(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that imports each name from the module that defines it.

    Args:
        module: its ``__name__``.
        homes: defining module -> its names, separated by spaces; a submodule is listed as a name
            of its package.
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
    """Stand-in for a module while others import it; later access goes to the real module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with _TURN:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Types(_Later):
    """A postponed module of types: an empty class stands in for each name meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: dict[str, type] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or sys.modules.get(self.__name__) is not self:
            return super().__getattr__(name)
        return self.made.setdefault(name, type(name, (), {}))


class _Functions(_Later):
    """A postponed module of functions: each name is a function that calls the real one."""

    def __getattr__(self, name: str) -> Any:
        if not name.islower() or sys.modules.get(self.__name__) is not self:
            return super().__getattr__(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)

        return call


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
    """Import a package; its module of types is imported when one of the types is used.

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
    """Import asyncio and anyio without TLS: OpenSSL, 4 MiB, is imported at its first use.

    anyio's sockets are postponed too, as a worker has none, and ``platform``: ``uuid`` imports it
    only for the name of the system.
    """
    if "asyncio" not in sys.modules:
        protocol = _Later("asyncio.sslproto")
        with postponed(_Types("ssl"), protocol, _Functions("anyio._core._sockets")):
            made = importlib.import_module("asyncio")
            importlib.import_module("anyio._backends._asyncio")
        vars(made).setdefault("sslproto", protocol)
    system = _Later("platform")
    vars(system)["system"] = lambda: os.uname().sysname if hasattr(os, "uname") else "Windows"
    with postponed(system):
        importlib.import_module("uuid")
