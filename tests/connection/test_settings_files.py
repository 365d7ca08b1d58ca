"""Settings come from places that belong to the log or its user, not from where a program starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskq import TaskQ
from taskq.connection.settings import load_settings, settings_files
from taskq.errors import LogError, UsageError
from tests.cli.helpers import taskq

#: Each says a name, and sends the log to a stranger.
_STRANGERS = {
    ".env": 'TASKQ_NAME=stranger\nTASKQ_HUB_URL=https://stranger\nTASKQ_HUB_ACCEPT=["*"]\n',
    "taskq.toml": 'name = "stranger"\n[hub]\nurl = "https://stranger"\naccept = ["*"]\n',
    "pyproject.toml": '[tool.taskq]\nname = "stranger"\nhub.url = "https://stranger"\n',
}
_BROKEN = {"taskq.toml": "name =\n", "pyproject.toml": "[tool.taskq\n", ".env": "TASKQ_QUEUES={"}


def _from_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQ:
    monkeypatch.setenv("TASKQ_DATA_DIR", str(path))
    return TaskQ()


def _of_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskQ:
    monkeypatch.setattr("taskq.connection.logoptions.user_data_dir", lambda _: path)
    return TaskQ.user_data("My App")


_NAMED: dict[str, Callable[[Path, pytest.MonkeyPatch], TaskQ]] = {
    "code": lambda path, _: TaskQ(path),
    "options": lambda path, _: TaskQ(str(path), durability="os"),
    "user_data": _of_user,
    "environment": _from_environment,
}


@pytest.mark.parametrize("texts", [_STRANGERS, _BROKEN], ids=["stranger", "broken"])
@pytest.mark.parametrize("way", _NAMED)
def test_who_names_the_directory_of_the_log_reads_nothing_of_the_working_directory(
    way: str, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    app = _NAMED[way](tmp_path / "elsewhere" / "log", monkeypatch)
    assert (app.name, app.settings.name, app.settings.hub) == ("", "", None)
    assert app.settings.files == ()


@pytest.mark.parametrize("name", _STRANGERS)
def test_no_file_of_the_working_directory_names_a_hub(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(_STRANGERS[name])
    with pytest.warns(UserWarning, match=rf"{name}.*\[hub\].*{tmp_path}/taskq-data/taskq.toml"):
        app = TaskQ()
    assert (app.name, app.settings.hub) == ("stranger", None)


def test_the_logs_own_file_goes_before_the_working_directory_and_the_users_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    users, own = tmp_path / "config/taskq/taskq.toml", tmp_path / "taskq-data/taskq.toml"
    near = tmp_path / "taskq.toml"
    for file in (users, near, own):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'name = "{file.parent.name}"\nlock_wait = {len(file.parts)}\n')
        assert TaskQ().name == file.parent.name
    assert settings_files() == [own, near, users]
    near.unlink()
    own.write_text('[hub]\nurl = "https://home"\n')
    users.write_text('name = "me"\n[hub]\ntoken_file = "token"\nmachine = "edge"\n')
    for app in (TaskQ(), TaskQ(tmp_path / "taskq-data")):
        hub = app.settings.hub
        assert hub is not None
        assert (app.name, hub.url, hub.machine) == ("me", "https://home", "edge")
        assert hub.token_file == users.parent / "token", "beside the file that names it"
    (tmp_path / "taskq-data").chmod(0o700)
    with TaskQ() as app:
        assert app.stats_sync().queues == (), "a new log may find its settings there"


@pytest.mark.parametrize("name", ["data_dir = 'x'", "nmae = 'x'", "name =", "name = '\xff'"])
def test_a_wrong_file_of_the_log_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/taskq.toml").write_text(name, encoding="latin-1")
    with pytest.raises(UsageError, match=r"^[^\n]*log/taskq\.toml[^\n]*$"):
        TaskQ(tmp_path / "log")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_another_users_file_in_the_logs_directory_names_no_hub(tmp_path: Path) -> None:
    """Other places may set how a log is kept, but not its address."""
    (tmp_path / "log").mkdir()
    file = tmp_path / "log/taskq.toml"
    file.write_text('name = "theirs"\n')
    for path in (file, file.parent):
        os.chown(path, 12_346, -1)
    assert TaskQ(tmp_path / "log").name == "theirs"
    file.write_text('[hub]\nurl = "https://stranger"\n')
    with pytest.raises(UsageError, match=r"taskq.toml is another user's.*\[hub\]"):
        TaskQ(tmp_path / "log")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        ("[project\n", ""),
        ("\xff\xfe", ""),
        ("tool = 1", ""),
        ("tool.taskq = 1", "tool.taskq"),
        ("[tool.taskq\n", "no TOML"),
        ("[tool.taskq]\nbroker = 1\n", "no setting 'broker'"),
        ("[tool.taskq]\nque = 1\n", "did you mean 'queues'"),
        ("[tool.taskq]\nqueues = ['a']\n", "queues"),
        ("[tool.taskq]\nname = 'x'\nsegment_bytes = 'many'\n", "segment_bytes"),
    ],
)
def test_another_programs_pyproject_stops_nobody(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="latin-1")
    if not message:
        assert TaskQ().name == ""
        return
    with pytest.warns(UserWarning, match=rf"pyproject.toml: .*{message}"):
        app = TaskQ()
    assert (app.name, app.data_dir) == ("", tmp_path / "taskq-data")


@pytest.mark.parametrize("name", [".env", "taskq.toml", "pyproject.toml", "taskq-data/taskq.toml"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(name: str, tmp_path: Path) -> None:
    (tmp_path / "taskq-data").mkdir()
    os.mkfifo(tmp_path / name)
    assert TaskQ().name == ""
    assert load_settings(None).name == ""
    assert settings_files() == []


def test_a_deleted_working_directory_stops_only_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with TaskQ(tmp_path / "log") as app:
        app.enqueue_by_name_sync("send")
    with TaskQ(tmp_path / "log", durability="os") as app:
        assert app.stats_sync().queues[0].ready == 1
    for name in (None, "log"):
        with pytest.raises(UsageError, match="the working directory, which is gone"):
            TaskQ(name)
    assert "send" in taskq("ls", "-d", tmp_path / "log").stdout
    for command in (["ls"], ["ls", "-d", "log"], ["ls", "-d", tmp_path], ["put", "x"], ["check"]):
        output = taskq(*command)
        assert output.exit_code != 0, command
        assert output.exception is None or isinstance(output.exception, SystemExit), command
        assert len((output.stdout + output.stderr).splitlines()) <= 4, output.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TASKQ_QUEUES", "{", r"queues \(TASKQ_QUEUES\) is no JSON"),
        ("TASKQ_HUB_ACCEPT", "photos", r"hub \(TASKQ_HUB…\) is no JSON"),
        ("TASKQ_HUB", "[", r"hub \(TASKQ_HUB\) is '\['"),
        ("TASKQ_NAME", "a\udcff", r"TASKQ_NAME.* no UTF-8"),
        ("TASKQ_DATA_DIR", "", r"data_dir \(TASKQ_DATA_DIR\) is ''.*: .*name a directory"),
    ],
)
def test_a_wrong_variable_is_one_line_and_makes_no_log(
    variable: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=rf"^[^\n]*{message}[^\n]*$"):
        TaskQ()
    for command in (["put", "send", "{}"], ["ls"], ["stats"]):
        shown = taskq(*command)
        assert isinstance(shown.exception, SystemExit), command
        assert shown.exit_code != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["TASKQ_NAME=a\xff", "TASKQ_QUEUES={"])
def test_a_wrong_dotenv_is_one_line_and_another_programs_is_left_alone(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"^[^\n]+$"):
        TaskQ()
    (tmp_path / ".env").write_text("OTHER=\xff\n", encoding="latin-1")
    assert TaskQ().name == ""


def test_an_empty_directory_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name a directory"):
        TaskQ("")
    for command in (["put", "-d", "", "x"], ["ls", ""]):
        assert "it is empty: name a directory" in taskq(*command).stderr
    assert list(tmp_path.iterdir()) == []


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
