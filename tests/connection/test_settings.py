"""Settings: their forms, and the places that they come from."""

import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskq import Durability, QueuePolicy, Shards, TaskQ
from taskq.connection.logoptions import LogOptions
from taskq.connection.settings import Settings, load_settings, settings_files
from taskq.errors import LogError, TaskqError, UsageError
from taskq.log.config import ALWAYS_SECONDS
from tests.cli.helpers import taskq

DAY = 86_400.0


def test_the_environment_holds_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "DATA_DIR": str(tmp_path / "d"), "DURABILITY": "interval", "INTERVAL": "20ms",
        "LOCK_WAIT": "2.5", "SEGMENT_BYTES": "1MiB", "EXCLUSIVE": "true", "MIN_FREE": "1GiB",
        "RESERVE": "0", "KEEP_DEAD": "2h", "DEAD_MAX": "1000",
        "QUEUES": '{"mail": {"keep_dead": "30d", "dead_max": 5, "keep": "never"}}',
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TASKQ_{name}", value)
    app = TaskQ()
    config = app._connection.config
    assert app.data_dir == tmp_path / "d"
    assert (config.durability, config.interval_seconds) == (Durability.INTERVAL, 0.02)
    assert (config.lock_wait_seconds, config.segment_bytes, config.exclusive) == (2.5, 2**20, True)
    assert (config.min_free_bytes, config.reserve_bytes) == (2**30, 0)
    assert (config.keep_dead_seconds, config.dead_max) == (7_200, 1_000)
    assert config.queues["mail"] == QueuePolicy(
        keep_seconds=ALWAYS_SECONDS, keep_dead_seconds=30 * DAY, dead_max=5
    )
    given = TaskQ(keep_dead="never", queues={"mail": QueuePolicy(dead_max=7)})._connection.config
    assert (given.keep_dead_seconds, given.queues["mail"].dead_max) == (None, 7)


def test_a_queue_may_store_bodies_otherwise_than_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taskq.toml").write_text(
        'compress = "zlib"\ndecompressed_bytes_max = "2GiB"\n'
        '[queues.mail]\ncompress = "none"\n[queues.video]\nkeep = "1d"\n'
    )
    config = TaskQ()._connection.config
    assert (config.decompressed_bytes_max, config.is_plain) == (2**31, False)
    asked = [("other", None), ("mail", None), ("video", None), ("video", "none"), ("mail", "zstd")]
    packed = [config.packing(queue, own) for queue, own in asked]  # type: ignore[arg-type]
    assert packed == ["zlib", None, "zlib", None, "zstd"]
    monkeypatch.setenv("TASKQ_QUEUES", '{"mail": {"compress": "zstd"}}')
    assert TaskQ()._connection.config.packing("mail") == "zstd"
    given, again = (
        TaskQ(queues={"mail": QueuePolicy(compress="zlib")}, compress="none")._connection.config
        for _ in range(2)
    )
    assert (given.packing("mail"), given.packing("other")) == ("zlib", None)
    assert given == again
    assert hash(given) == hash(again)


def test_where_nothing_is_said_the_settings_are_not_even_loaded(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "taskq-user"\n')
    (tmp_path / ".env").write_text("DATA_DIR=/nowhere\n")
    app = TaskQ()
    assert "settings" not in vars(app)
    settings = Settings(data_dir=tmp_path / "taskq-data")
    assert app._connection.config == settings.log_config()
    assert app.settings.model_dump() == {**settings.model_dump(), "data_dir": app.settings.data_dir}
    assert app.data_dir == settings.data_dir


#: Options from code: right ones, settings-only ones, and wrong ones.
GIVEN: dict[str, list[Any]] = {
    "durability": ["os", Durability.OS, "FSYNC", 1, []],
    "interval": [0.1, 1, "20ms", timedelta(seconds=1), "7", "soon", True, 0],
    "keep": ["7d", "never", 0, -1, []],
    "segment_age": ["1h", 5, "5"],
    "segment_bytes": [2**20, "1MiB", 1, "much"],
    "reserve": [0, 2**20, -5, "0"],
    "exclusive": [True, 1, "yes", "perhaps"],
    "name": ["mail", "", b"mail", 5],
    "compress": ["zlib", "none", "gzip", []],
    "mode": ["group", "all", 5],
    "queues": [
        *({}, {"a": {}}, {"a": {"keep": "1d", "dead_max": 3}}, {"a": QueuePolicy(compress="zlib")}),
        *(["a"], {"a": 5}, {"a": None}, {"a": {"keap": 1}}, {5: {}}, {b"a": {}}, {None: {}}),
        *({"a": {"dead_max": odd}} for odd in (None, "3", 1.5, -1)),
        *({"a": {name: 1}} for name in ("compress", "keep", "keep_dead")),
    ],
}


@pytest.mark.parametrize(
    "given", [{name: value} for name, values in GIVEN.items() for value in values], ids=str
)
def test_options_are_understood_as_the_settings_do_that_code_need_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    def made() -> tuple[object, object]:
        try:
            app = TaskQ(tmp_path, **given)
        except UsageError as error:
            return str(error), None
        return app._connection.config, app.settings

    alone = made()
    # Somebody says something, so that they are loaded.
    monkeypatch.setenv("TASKQ_LOG_LEVEL", "warning")
    assert made() == alone


def test_settings_can_be_handed_over_and_arguments_go_before_them(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "own", durability=Durability.OS)
    assert TaskQ(settings=settings).settings is settings
    app = TaskQ(tmp_path / "other", settings=settings)
    assert app.data_dir == tmp_path / "other"
    assert app._connection.config.durability is Durability.OS


def test_a_change_of_directory_does_not_move_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = TaskQ("data")
    monkeypatch.chdir(os.sep)
    assert app.data_dir == tmp_path / "data"
    app.data_dir = tmp_path / "two"
    assert app.data_dir == tmp_path / "two"


def test_the_hub_has_a_table_of_its_own_and_its_token_is_shown_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taskq-data").mkdir()
    text = '[hub]\nurl = "https://one"\ntoken_file = "token"\n'
    (tmp_path / "taskq-data/taskq.toml").write_text(text)
    monkeypatch.setenv("TASKQ_HUB_URL", "https://two")
    monkeypatch.setenv("TASKQ_HUB_TOKEN", "tq1.edge-7.secret")
    hub = load_settings(None).hub
    assert hub is not None
    assert (hub.url, hub.token_file) == ("https://two", tmp_path / "taskq-data/token")
    assert hub.token is not None
    assert hub.token.get_secret_value() == "tq1.edge-7.secret"
    assert "secret" not in repr(load_settings(None))


#: Names that are neither a setting nor an argument.
NONSENSE: tuple[Any, ...] = (
    5, -1, 1.5, float("nan"), float("inf"), b"x", [], [1], {}, {1: 2}, object(), True, "[[[", int,
    lambda: 1, 10**400, "\ud800",
)  # fmt: skip
_NESTED = 100_000


@pytest.mark.parametrize("name", [*LogOptions.__annotations__, "include", "shards", "settings"])
def test_an_argument_of_the_wrong_type_is_refused_or_taken_and_no_other_error(name: str) -> None:
    for value in NONSENSE:
        with contextlib.suppress(TaskqError):
            TaskQ("data", **{name: value})


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_variable_with_nonsense_is_refused_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"TASKQ_{name.upper()}"
    for text in ("[[[", "[" * _NESTED, '{"a":' * _NESTED, "{}", "null", "1e999", "9" * 5_000, "'"):
        monkeypatch.setenv(variable, text)
        problem = ""
        try:
            load_settings(None)
        except UsageError as error:
            problem = str(error)
        assert not problem or name in problem or "nested too deeply" in problem


def test_a_file_that_is_nested_too_deeply_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "taskq.toml").write_text("queues = " + "[" * _NESTED)
    with pytest.raises(UsageError, match="is no TOML"):
        TaskQ(tmp_path)


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


def _moved(path: Path, _: pytest.MonkeyPatch) -> TaskQ:
    app = TaskQ(path.with_name("other"))
    app.data_dir = path
    return app


_NAMED: dict[str, Callable[[Path, pytest.MonkeyPatch], TaskQ]] = {
    "code": lambda path, _: TaskQ(path),
    "options": lambda path, _: TaskQ(str(path), durability="os"),
    "user_data": _of_user,
    "environment": _from_environment,
    "moved": _moved,
    "shards": lambda path, _: TaskQ(shards=Shards(path)).logs()[1],
    "over": lambda path, _: TaskQ(path.with_name("other")).over(path),
}


@pytest.mark.parametrize("texts", [_STRANGERS, _BROKEN], ids=["stranger", "broken"])
@pytest.mark.parametrize("way", _NAMED)
def test_a_given_log_directory_ignores_settings_of_the_working_directory(
    way: str, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    app = _NAMED[way](tmp_path / "elsewhere" / "log", monkeypatch)
    assert (app.name, app.settings.name, app.settings.hub) == ("", "", None)
    assert app.settings.files == ()


@pytest.mark.parametrize("way", _NAMED)
def test_the_logs_own_file_holds_however_its_directory_is_named(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "log" / "taskq.toml"
    own.parent.mkdir()
    own.write_text('interval = "7ms"\n')
    app = _NAMED[way](own.parent, monkeypatch)
    assert (app._connection.config.interval_seconds, app.settings.files) == (0.007, (own,))
    own.write_text('interval = "x"\n')
    with pytest.raises(UsageError, match=rf"interval \({own}\) is 'x'"):
        _NAMED[way](own.parent, monkeypatch)
    own.unlink()
    own.mkdir()
    with pytest.raises(UsageError, match=f"{own} is a directory"):
        _NAMED[way](own.parent, monkeypatch)


@pytest.mark.parametrize("name", _STRANGERS)
def test_no_file_of_the_working_directory_names_a_hub(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(_STRANGERS[name])
    with pytest.warns(UserWarning, match=rf"{name}.*\[hub\].*{tmp_path}/taskq-data/taskq.toml"):
        app = TaskQ()
    assert (app.name, app.settings.hub) == ("stranger", None)


def test_the_nearer_place_wins_the_users_file_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    users, own = tmp_path / "config/taskq/taskq.toml", tmp_path / "taskq-data/taskq.toml"
    near, project, dotenv = (tmp_path / name for name in ("taskq.toml", "pyproject.toml", ".env"))
    for file, text in (
        (users, 'name = "users"\nlock_wait = 7'), (project, '[tool.taskq]\nname = "project"'),
        (near, 'name = "near"'), (dotenv, "OTHER=1\nTASKQ_NAME=dotenv"), (own, 'name = "own"'),
    ):  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        assert (name := TaskQ().name) in text
    assert name == "own"
    monkeypatch.setenv("TASKQ_NAME", "env")
    assert [TaskQ().name, TaskQ(name="argument").name] == ["env", "argument"]
    assert TaskQ()._connection.config.lock_wait_seconds == 7
    monkeypatch.delenv("TASKQ_NAME")
    assert settings_files() == [own, dotenv, near, project, users]
    for file in (near, project, dotenv):
        file.unlink()
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
def test_a_faulty_pyproject_of_another_program_stops_no_app(
    text: str, message: str, tmp_path: Path
) -> None:
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


def test_a_deleted_working_directory_stops_only_calls_that_need_it(
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
        ("TASKQ_NAME", "a\udcff", r"TASKQ_NAME.* no UTF-8"),
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


@pytest.mark.parametrize(
    "names", [(), (".gitkeep", ".DS_Store"), ("lost+found/",), ("log/",), ("log/", "write.lock")]
)
def test_an_empty_directory_and_a_volumes_root_and_an_interrupted_making_are_taken(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in names:
        (home / name).mkdir() if name.endswith("/") else (home / name).touch(0o600)
    put(home)
    (home / "notes.txt").touch()  # which keeps nobody from opening it
    put(home)


def test_a_desktop_program_has_its_log_where_its_user_has_such_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    inside = {"linux": "share", "darwin": "Library/Application Support"}[sys.platform]
    with TaskQ.user_data("My App", include=["shop.tasks"], durability="os") as app:
        assert app.data_dir == tmp_path / inside / "My App" / "taskq"
        assert app.data_dir.is_dir()
        assert app.settings.durability == "os"
