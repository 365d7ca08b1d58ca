"""Compile the extension when taskq is built or installed: a hatchling hook.

taskq is installed without the extension, and only slower, if a C compiler or Python's headers are
missing, on an unsupported Python, and with ``TASKQ_NATIVE=0``.
``python -m taskq._native.build FLAGS`` compiles it into the folder of the sources.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
SOURCES: Final = ("module.c", "slots.c", "calls.c", "codecs.c", "columns.c")
#: First and last supported version of CPython; other versions have another API.
PYTHONS: Final = ((3, 11), (3, 14))
COMPILE_SECONDS_MAX: Final = 120


def is_for(version: tuple[int, int], implementation: str, *, has_gil: bool) -> bool:
    """Return whether the extension supports this version and implementation of Python."""
    return implementation == "cpython" and has_gil and PYTHONS[0] <= version <= PYTHONS[1]


def digest() -> str:
    """Return a digest of the sources, in 16 hexadecimal digits."""
    sources = hashlib.sha256()
    for path in sorted((*FOLDER.glob("*.c"), *FOLDER.glob("*.h"))):
        sources.update(path.name.encode() + path.read_bytes())
    return sources.hexdigest()[:16]


def build_id() -> str:
    """Return version and digest of the sources, such as ``9-db3b0b53``."""
    (version,) = re.findall(
        r"#define TASKQ_NATIVE_VERSION (\d+)", (FOLDER / "native.h").read_text()
    )
    return f"{version}-{digest()[:8]}"


def place_in(folder: Path) -> Path:
    """Return the path of the extension for this Python in a folder."""
    return folder / f"_plain{sysconfig.get_config_var('EXT_SUFFIX')}"


def compiled(folder: Path, *flags: str) -> Path | None:
    """Compile the extension for this Python into a folder; return None if it cannot be compiled."""
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    if not is_for(sys.version_info[:2], sys.implementation.name, has_gil=has_gil):
        return None
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    is_mac = sys.platform == "darwin"
    linked = ("-bundle", "-undefined", "dynamic_lookup") if is_mac else ("-shared",)
    target = place_in(folder)
    # The file is replaced as a whole, since a program may be running the old one.
    draft = folder / f".{os.getpid()}{target.name}"
    command = (
        *shlex.split(compiler), "-std=c11", "-O2", "-fPIC", "-fvisibility=hidden",
        f'-DTASKQ_NATIVE_BUILD="{build_id()}"',
        *shlex.split(os.environ.get("ARCHFLAGS", "")), *flags, *linked,
        "-I", sysconfig.get_path("include"), *(str(FOLDER / name) for name in SOURCES),
        "-o", str(draft),
    )  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that Python names
            command, check=False, capture_output=True, timeout=COMPILE_SECONDS_MAX
        )
        if done.returncode != 0:
            return None
        draft.replace(target)
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        draft.unlink(missing_ok=True)
    return target


def get_build_hook() -> type[Any]:
    """Return the hook for hatchling, which is installed only while taskq is built."""
    from hatchling.builders.hooks.plugin.interface import (  # noqa: PLC0415 - see above
        BuildHookInterface,
    )

    class Compiling(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
        """Puts the extension into the source folder and the wheel, then platform-specific."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile before files are collected."""
            is_off = os.environ.get("TASKQ_NATIVE") == "0"
            library = None if is_off else compiled(FOLDER)
            why = "TASKQ_NATIVE=0" if is_off else "nothing that compiles it here"
            where = f"Python ({why})" if library is None else f"C (build {build_id()})"
            self.app.display_info(f"taskq: plain jobs run in {where}")
            if library is None and version == "editable":
                place_in(FOLDER).unlink(missing_ok=True)  # of an earlier installation
            if library is not None and version != "editable":
                build_data["force_include"][str(library)] = f"taskq/_native/{library.name}"
                build_data["pure_python"] = False
                build_data["infer_tag"] = True

    return Compiling


if __name__ == "__main__" and compiled(FOLDER, *sys.argv[1:]) is None:
    sys.exit("the extension does not compile here")
