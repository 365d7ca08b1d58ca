"""Options of a log, and the files of the settings: read without pydantic.

A program without settings need not import pydantic-settings, a third of its loaded code.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from taskq.calls.habits import option_instead
from taskq.core import durations, errors, model, parsing
from taskq.core.model import Mode
from taskq.core.values import NamedTuple, TypedDict
from taskq.log.config import ALWAYS_SECONDS, LogConfig, QueuePolicy
from taskq.log.format.bodies import Compression


class QueueOptions(TypedDict, total=False):
    """Options for one queue; they override the same options in ``LogOptions``."""

    compress: Compression | None
    keep: durations.Duration | None
    keep_dead: durations.Duration | None
    dead_max: int | None


class LogOptions(TypedDict, total=False):
    """Options for opening a log; all may be left out."""

    #: the kind of crash that an awaited enqueue survives
    durability: model.Durability | str
    #: with durability "interval": the longest time until the next fsync
    interval: durations.Duration
    #: size of a segment at which the log begins the next segment
    segment_bytes: int
    #: longest use of a segment after the end of one of its jobs; by default an eighth of `keep`
    segment_age: durations.Duration | None
    #: free bytes of the disk below which enqueues raise ``DiskFull``, while settling goes on; by
    #: default 16 MiB, or 2 % of a small disk
    min_free: int | None
    #: space reserved for settling jobs on a full disk; by default 1 MiB, or 2 % of a small disk
    reserve: int | None
    #: longest wait for another process's writer lock
    lock_wait: durations.Duration
    #: keep other processes out
    exclusive: bool
    #: name of the process in ``taskq workers``
    name: str
    #: how payloads and results are compressed, unless the task or the queue has its own setting
    compress: Compression
    #: a body is not decompressed if it would become larger
    decompressed_bytes_max: int
    #: how long finished jobs are kept after their end; "never": they are never removed
    keep: durations.Duration
    #: the log's size beyond which the oldest finished jobs are removed before `keep` is over
    keep_bytes: int | None
    #: the number of full segments beyond which the oldest finished jobs are removed
    keep_segments: int | None
    #: how long dead letters are kept after their death; "never", the default: never removed
    keep_dead: durations.Duration
    #: most dead letters; the oldest deaths are removed first
    dead_max: int | None
    #: unread records are kept for named readers only while the log is smaller
    reader_lag_bytes: int | None
    #: whether the process also does upkeep, if it works on jobs
    upkeep: bool
    #: a waiting job rises one priority for each such time, up to 9; or "never"
    starvation: durations.Duration | None
    #: most dedup keys that are held at a time; an enqueue with a further key is refused
    keys_max: int
    #: options of single queues, by name; JSON in the environment
    queues: Mapping[str, QueuePolicy | QueueOptions]
    #: access to a new log: "private" (its user) or "group"; by default like its directory
    mode: Mode | None


#: Options with another name in ``LogConfig``.
_UNITS: Final = {
    "interval": "interval_seconds",
    "keep": "keep_seconds",
    "keep_dead": "keep_dead_seconds",
    "lock_wait": "lock_wait_seconds",
    "min_free": "min_free_bytes",
    "segment_age": "segment_age_seconds",
    "reserve": "reserve_bytes",
    "starvation": "starvation_seconds",
}
#: Options that are whole numbers: counts, and options that may be None.
COUNTS: Final = frozenset({"keep_segments", "dead_max", "keys_max"})
OR_NONE: Final = frozenset(
    {"min_free", "reserve", "keep_bytes", "keep_segments", "dead_max", "reader_lag_bytes"}
)
NUMBERS: Final = OR_NONE | {
    "segment_bytes", "decompressed_bytes_max", "keys_max",
}  # fmt: skip
#: Options that are durations: how each is read, and whether it may be None.
SPANS: Final[dict[str, tuple[Callable[[Any, str], float | None], bool]]] = {
    "interval": (durations.seconds, False),
    "lock_wait": (durations.seconds, False),
    "keep": (durations.seconds_or_never, False),
    "keep_dead": (durations.seconds_or_never, False),
    "segment_age": (durations.seconds, True),
    "starvation": (durations.seconds_or_never, True),
}
SWITCHES: Final = frozenset({"exclusive", "upkeep"})


def named_in_units(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each option with its name in ``LogConfig``."""
    return [(name, _UNITS.get(name, name)) for name in names]


def in_units(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their names in ``LogConfig``."""
    return {unit: options[name] for name, unit in named_in_units(options)}


def log_config(options: LogOptions) -> LogConfig:
    """Return the options as a ``LogConfig``."""
    known = LogOptions.__annotations__
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise unknown_option(name)
        values[name] = _checked(name, value)
    if "queues" in values:
        values["queues"] = {
            name: _policy(name, policy) for name, policy in values["queues"].items()
        }
    for name, (read, or_none) in SPANS.items():
        if name in values and not (or_none and values[name] is None):
            values[name] = read(values[name], name)
    if "durability" in values:
        values["durability"] = _durability(values["durability"])
    return LogConfig(**in_units(values))


def config_if_plain(options: LogOptions | dict[str, Any]) -> LogConfig | None:
    """Return the options as a ``LogConfig``; None if only the settings can read or refuse them.

    The settings accept text for numbers, and take 0.1 s to import.
    """
    with contextlib.suppress(errors.UsageError):
        return log_config(cast("LogOptions", options))
    return None


def checked_numbers(options: LogOptions) -> dict[str, Any]:
    """Return the options with checked numbers; text is accepted as in the settings."""
    return {
        name: value if isinstance(value, str) or name not in NUMBERS else _checked(name, value)
        for name, value in options.items()
        if value is not None
    }


def _checked(name: str, value: Any) -> Any:
    """Refuse a wrong value here, before it causes an unrelated error later."""
    if name in NUMBERS and not (value is None and name in OR_NONE):
        return parsing.whole(value, name)
    if name in SWITCHES and type(value) is not bool:
        raise errors.UsageError(f"{name} is {value!r:.60}, it must be True or False")
    if name == "name" and not isinstance(value, str):
        raise errors.UsageError(f"name is {value!r:.60}, it must be text")
    if name == "queues" and not isinstance(value, Mapping):
        raise errors.UsageError(
            f"queues is {value!r:.60}: give what is other in each, by their names"
        )
    return value


def _policy(queue: str, given: object) -> QueuePolicy:
    parsing.check_name("queue name", queue)
    if isinstance(given, QueuePolicy):
        return given
    what = f"queues[{queue!r:.60}]"
    if not isinstance(given, Mapping):
        raise errors.UsageError(
            f"{what} is {given!r:.60}: give a QueuePolicy, or its options as a dict"
        )
    unknown = given.keys() - QueueOptions.__annotations__.keys()
    if unknown:
        name, known = min(unknown), QueueOptions.__annotations__
        raise errors.UsageError(f"{what} has no option {name!r}: {option_instead(name, known)}")
    if given.get("dead_max") is not None:
        _checked("dead_max", given["dead_max"])
    spans = {
        name: _seconds_or_always(given.get(name), f"{what} {name}")
        for name in ("keep", "keep_dead")
    }
    return QueuePolicy(**in_units({**given, **spans}))


def _seconds_or_always(value: durations.Duration | None, what: str) -> float | None:
    if value is None:
        return None
    return ALWAYS_SECONDS if value == durations.NEVER else durations.seconds(value, what)


def _durability(value: model.Durability | str) -> model.Durability:
    try:
        return model.Durability(value)
    except ValueError:
        known = ", ".join(model.Durability)
        raise errors.UsageError(f"durability is {value!r}, it must be one of {known}") from None


def unknown_option(name: str) -> errors.UsageError:
    """Return the error for an unknown option, with the known options."""
    known = LogOptions.__annotations__
    return errors.UsageError(f"there is no option {name!r}: {option_instead(name, known)}")


PREFIX: Final = "TASKQ_"
#: Variables with the prefix that are no settings: ``taskq._native`` reads them at import.
NO_SETTINGS: Final = frozenset({"TASKQ_NATIVE"})
#: A file in the log's directory, in the working directory and in the user's configuration.
TOML: Final = "taskq.toml"
#: Files in the working directory that other programs use as well.
DOTENV, PYPROJECT = ".env", "pyproject.toml"
#: Files of the working directory; an earlier file wins.
NEAR: Final = (DOTENV, TOML, PYPROJECT)
#: The default of the log's directory.
DATA_DIR_DEFAULT: Final = "taskq-data"
#: The default of the lowest level that ``taskq worker`` writes to stderr.
LOG_LEVEL_DEFAULT: Final = "warning"
LOG_FORMAT_DEFAULT: Final = "text"


#: Shorter paths are possible on every system.
_LONG: Final = 150


def user_data_dir(name: str) -> Path:
    """Return the user's data directory for a desktop program of that name."""
    if not name.strip(" .") or "/" in name or "\\" in name or "\0" in name:
        raise errors.UsageError(f"{name!r:.60} is no program's name: give one such as 'My App'")
    from platformdirs import user_data_path  # noqa: PLC0415 - few programs are desktop apps

    return user_data_path(name, appauthor=False) / "taskq"


def checked_data_dir(data_dir: object) -> str | Path | None:
    """Return the directory as text or a path; None for none."""
    if data_dir is None or data_dir == "":
        return None if data_dir is None else ""
    path = os.fspath(data_dir) if isinstance(data_dir, os.PathLike) else data_dir
    if not isinstance(path, str):
        raise errors.UsageError(
            f"the log's directory is {data_dir!r:.60}: give its path as text or a Path, "
            f'such as TaskQ("./data")'
        )
    if len(path) < _LONG:
        return Path(path)
    from taskq.log.machine.system import system  # noqa: PLC0415 - few paths are as long

    return Path(system.named(path))


def absolute_path(path: str) -> str:
    """Return the absolute path, with its links unresolved."""
    try:
        return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    except FileNotFoundError:
        raise errors.UsageError(
            f"{path!r:.60} is below the working directory, which is gone: give an absolute path"
        ) from None


class SettingsFile(NamedTuple):
    """A file that may hold settings.

    Attributes:
        path: the file.
        is_near: it is in the working directory, where other users may write: it may name no hub.
    """

    path: Path
    is_near: bool = False


def settings_places(
    data_dir: str | os.PathLike[str] | None, default: Path | None = None
) -> list[SettingsFile]:
    """Return the files that may hold settings, the first wins: the log's, local, the user's.

    Args:
        data_dir: the log's directory if code, -d or the environment names it; files of the
            working directory are then ignored.
        default: the log's directory otherwise.
    """
    directory = Path(data_dir) if data_dir is not None else default or Path(DATA_DIR_DEFAULT)
    here = [] if data_dir is not None else [SettingsFile(Path(name), True) for name in NEAR]
    return [SettingsFile(directory / TOML), *here, SettingsFile(_config_home() / "taskq" / TOML)]


def _config_home() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.config"))  # noqa: PTH111, PTH117 - a user without a home is no error


def read_plain_file(path: Path) -> str | None:
    """Return the text of a plain file; None for anything else, such as a pipe."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # this user may not see the file
        return None
    if stat.S_ISDIR(mode) and path.name == TOML:  # a container's mount of a missing file
        raise errors.UsageError(f"{path} is a directory, and no file of settings: remove it")
    is_plain = stat.S_ISREG(mode)
    try:
        return path.read_text(encoding="utf-8") if is_plain else None
    except (OSError, ValueError) as error:
        if path.name != TOML and not _is_ours(path):
            return None
        problem = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise errors.UsageError(f"{path} cannot be read: {problem}") from None


def _is_ours(path: Path) -> bool:
    """Return whether a file that is no UTF-8 contains settings nevertheless."""
    try:
        return path.name == DOTENV and PREFIX.encode() in path.read_bytes().upper()
    except OSError:
        return False


def has_no_settings(data_dir: str | os.PathLike[str] | None) -> bool:
    """Return whether neither environment nor files set an option."""
    if any(name[: len(PREFIX)].upper() == PREFIX for name in os.environ.keys() - NO_SETTINGS):
        return False
    return not any(_speaks(place.path) for place in settings_places(data_dir))


def _speaks(path: Path) -> bool:
    text = read_plain_file(path)
    if text is None:
        return False
    if path.name == TOML or _others_may_write(path):
        return True
    return PREFIX in text.upper() if path.name == DOTENV else bool(_table_of_project(text))


def _table_of_project(text: str) -> object:
    if "taskq" not in text:
        return None
    import tomllib  # noqa: PLC0415 - most programs start where there is none

    try:
        tool = tomllib.loads(text).get("tool")
    except ValueError:
        return text
    return isinstance(tool, dict) and tool.get("taskq")


def refuse_planted(path: Path) -> None:
    """Refuse a settings file that another user may have put there, as in a directory like /tmp."""
    if _others_may_write(path):
        from taskq.log.machine.access import geteuid  # noqa: PLC0415 - few files lie so

        owner = path.parent.stat().st_uid
        if path.stat().st_uid not in {0, geteuid(), owner}:
            raise errors.UsageError(
                f"{path.absolute()} is another user's, in a directory that all may write to: "
                f"its settings are not obeyed, work in another directory"
            )


def _others_may_write(path: Path) -> bool:
    return bool(path.parent.stat().st_mode & stat.S_IWOTH)
