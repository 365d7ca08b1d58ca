"""Names that a package looks up when somebody asks for them: an import costs what it uses."""

from __future__ import annotations

import importlib
import sys
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
        found = importlib.import_module(home)
        value = getattr(found, name, None) or importlib.import_module(f"{home}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return look_up
