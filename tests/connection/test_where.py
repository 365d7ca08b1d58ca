"""Where a log is: in a directory of its own, or where a desktop program keeps its data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from taskq import TaskQ
from taskq.errors import LogError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def put(path: Path) -> None:
    with TaskQ(path) as app:
        app.enqueue_by_name_sync("send")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("main.py",), "'main.py'. Give"),
        (("a", "b", "c", "d", "e"), "'a', 'b', 'c' and 2 more. Give"),
        (("log/syslog",), "'log'. Give"),
        ((".git/config", "src/x"), "'src'. Give"),
    ],
)
def test_a_directory_with_other_files_is_refused_and_left_as_it_was(
    tmp_path: Path, files: tuple[str, ...], message: str
) -> None:
    home = tmp_path / "home"
    for name in files:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    home.chmod(0o755)
    before = sorted(home.rglob("*"))
    with pytest.raises(LogError) as info:
        put(home)
    assert str(info.value) == (
        f"{home} is no task log, and has other files in it: {message} the log a directory of "
        f"its own, such as {home / 'taskq-data'}"
    )
    assert sorted(home.rglob("*")) == before
    assert home.stat().st_mode & 0o777 == 0o755
    with pytest.raises(LogError):
        put(home)


def test_an_empty_directory_and_a_volumes_root_and_an_interrupted_making_are_taken(
    tmp_path: Path,
) -> None:
    for number, names in enumerate([(), (".gitkeep", ".DS_Store"), ("lost+found/",), ("log/",)]):
        home = tmp_path / str(number)
        home.mkdir()
        for name in names:
            (home / name).mkdir() if name.endswith("/") else (home / name).touch()
        put(home)
    made = tmp_path / "cut"
    made.mkdir()
    (made / "log").mkdir()
    (made / "write.lock").touch(0o600)
    put(made)


def test_what_somebody_puts_beside_a_log_does_not_keep_it_from_being_opened(tmp_path: Path) -> None:
    home = tmp_path / "data"
    put(home)
    (home / "notes.txt").touch()
    put(home)


def test_a_desktop_program_has_its_log_where_its_user_has_such_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    app = TaskQ.user_data("My App", include=["shop.tasks"], durability="os")
    inside = {"linux": "share", "darwin": "Library/Application Support"}[sys.platform]
    assert app.data_dir == tmp_path / inside / "My App" / "taskq"
    assert app.settings.durability == "os"
    assert not app.data_dir.exists()
    with app:
        assert app.data_dir.is_dir()


@pytest.mark.parametrize("name", ["", " ", "..", "a/b", "../x", "/etc", "a\0b"])
def test_what_is_no_name_of_a_program_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no program's name"):
        TaskQ.user_data(name)


def test_a_desktop_programs_directory_is_not_chosen_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"leave data_dir out, or write TaskQ\(data_dir\)"):
        TaskQ.user_data("My App", data_dir=tmp_path)
