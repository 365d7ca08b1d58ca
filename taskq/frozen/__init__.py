"""What PyInstaller needs to know of taskq; it asks for the folder through ``pyinstaller40``."""

from __future__ import annotations

from pathlib import Path


def hook_dirs() -> list[str]:
    """Return where the hooks are."""
    return [str(Path(__file__).parent)]
