"""Names that a package looks up when somebody asks for them: an import costs what it uses."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazily(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
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


class _Types(ModuleType):
    """Stands for a module of types while its package is imported: an empty class for each name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: dict[str, type] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            return self.made.setdefault(name, type(name, (), {}))
        # Another thread got hold of it meanwhile.
        return getattr(importlib.import_module(self.__name__), name)


def import_without_types(package: str, types: str) -> None:
    """Import a package; the module that it takes types from follows when somebody asks for one.

    Args:
        package: its full name.
        types: name of the module in it. What the package says of them is not evaluated.
    """
    whole = f"{package}.{types}"
    if package in sys.modules or whole in sys.modules:
        return
    later = sys.modules[whole] = _Types(whole)
    try:
        home = importlib.import_module(package)
    finally:
        del sys.modules[whole]
    for name, kind in later.made.items():
        if vars(home).get(name) is kind:
            delattr(home, name)
    vars(home)["__getattr__"] = lazily(package, {package: types, whole: " ".join(later.made)})
