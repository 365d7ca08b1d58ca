"""The folder of PyInstaller's hook for taskq, found by the entry point ``pyinstaller40``."""

from __future__ import annotations

from pathlib import Path


def hook_dirs() -> list[str]:
    """Return the directories with the hooks."""
    return [str(Path(__file__).parent)]
