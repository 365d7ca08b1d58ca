"""The table of kinds is the only truth: about layouts, states, options, for code and documents."""

from __future__ import annotations

from pathlib import Path

from taskq.log.format import codec
from tests.tables import specified


def test_the_specification_has_the_table_of_kinds() -> None:
    """Write it anew with python -m tests.tables."""
    source = Path(codec.__file__).read_text(encoding="utf-8")
    assert specified(source) == source
