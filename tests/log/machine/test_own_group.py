"""The owner of a group: the user alone, or others, too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from taskq.log.machine import access


@pytest.mark.parametrize(
    ("group", "members", "is_alone"),
    [
        ("ada", [], True),
        ("ada", ["ada"], True),
        ("ada", ["ada", "bob"], False),
        ("staff", [], False),
        ("staff", ["ada"], False),
    ],
)
def test_a_group_of_the_users_name_without_others_lets_nobody_in(
    monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], is_alone: bool
) -> None:
    user = SimpleNamespace(pw_name="ada")
    monkeypatch.setattr("pwd.getpwuid", lambda _: user)
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=group, gr_mem=members))
    assert access._is_alone(Path().stat()) is is_alone
