"""Describe the package for an index: there links into the repository lead nowhere.

Hatchling calls it (a metadata hook). Of such links the words stay, and pictures of the repository
are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE: Final = re.compile(r"!\[[^\]]*\]\((?!\w+:)[^)\s]+\)\n+")
_LINK: Final = re.compile(r"\[([^\[\]]+)\]\((?!\w+:)[^)\s]+\)")


class Described(MetadataHookInterface):  # type: ignore[misc, unused-ignore]
    """Set the description that an index shows."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it to the front page."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_links(text)}


def without_links(text: str) -> str:
    """Return Markdown without links and pictures that lead into the repository."""
    return _LINK.sub(r"\1", _PICTURE.sub("", text))
