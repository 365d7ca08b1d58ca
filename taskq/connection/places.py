"""Where settings come from, and whether any of these places says something.

A program that is told nothing need not import what reads and checks it: pydantic-settings brings a
third of what such a program would load.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from taskq.core.errors import UsageError
from taskq.core.values import NamedTuple

PREFIX: Final = "TASKQ_"
#: What begins so and is read elsewhere: ``taskq._native``, before there is an app.
NO_SETTINGS: Final = frozenset({"TASKQ_NATIVE"})
#: In the log's directory, in the working directory and in the user's configuration.
TOML: Final = "taskq.toml"
#: In the working directory: other programs' too.
DOTENV, PYPROJECT = ".env", "pyproject.toml"
#: Of the working directory; those of a later file give way.
NEAR: Final = (DOTENV, TOML, PYPROJECT)
#: The log's directory where nothing is said.
DATA_DIR_DEFAULT: Final = "taskq-data"
#: From which level on ``taskq worker`` writes to stderr, likewise.
LOG_LEVEL_DEFAULT: Final = "warning"
LOG_FORMAT_DEFAULT: Final = "text"


def of_program(name: str) -> Path:
    """Return where this user's system keeps the data of a desktop program of that name.

    Raises:
        UsageError: the name is empty or a path.
    """
    if not name.strip(" .") or "/" in name or "\\" in name or "\0" in name:
        raise UsageError(f"{name!r:.60} is no program's name: give one such as 'My App'")
    from platformdirs import user_data_path  # noqa: PLC0415 - few programs are desktop apps

    return user_data_path(name, appauthor=False) / "taskq"


def checked(data_dir: object) -> str | Path | None:
    """Return the directory as text or a path; None for none.

    Raises:
        UsageError: it is no path.
    """
    if data_dir is None or isinstance(data_dir, str | Path):
        return data_dir
    path = os.fspath(data_dir) if isinstance(data_dir, os.PathLike) else data_dir
    if not isinstance(path, str):
        raise UsageError(
            f"the log's directory is {data_dir!r:.60}: give its path as text or a Path, "
            f'such as TaskQ("./data")'
        )
    return Path(path)


def absolute(path: str) -> str:
    """Return the path from the root on, its links as they are.

    Raises:
        UsageError: it is of the working directory, and that was removed.
    """
    try:
        return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links
    except FileNotFoundError:
        raise UsageError(
            f"{path!r:.60} is below the working directory, which is gone: give an absolute path"
        ) from None


class Place(NamedTuple):
    """A file that may hold settings.

    Attributes:
        path: the file.
        is_near: it is of the working directory, which may be anybody's: it names no hub.
    """

    path: Path
    is_near: bool = False


def places_of(data_dir: str | os.PathLike[str] | None, default: Path | None = None) -> list[Place]:
    """Return the files that may hold settings, the first wins: of the log, from here, of the user.

    Args:
        data_dir: the log's directory as somebody named it, in code, -d or the environment: where
            the program starts is then of no concern.
        default: the directory if nobody did.
    """
    directory = Path(data_dir) if data_dir is not None else default or Path(DATA_DIR_DEFAULT)
    here = [] if data_dir is not None else [Place(Path(name), True) for name in NEAR]
    return [Place(directory / TOML), *here, Place(_config_home() / "taskq" / TOML)]


def _config_home() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.config"))  # noqa: PTH111, PTH117 - a user without a home is no error


def read_place(path: Path) -> str | None:
    """Return the text of a plain file; None of anything else, such as a pipe that makes one wait.

    Raises:
        UsageError: it is taskq's own file, and cannot be read.
    """
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # where this user may not even look there is nothing for it
        return None
    try:
        return path.read_text(encoding="utf-8") if is_plain else None
    except (OSError, ValueError) as error:
        if path.name != TOML and not _is_ours(path):
            return None
        problem = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"{path} cannot be read: {problem}") from None


def _is_ours(path: Path) -> bool:
    """Return whether what is no UTF-8 has settings in it all the same."""
    try:
        return path.name == DOTENV and PREFIX.encode() in path.read_bytes().upper()
    except OSError:
        return False


def are_silent(data_dir: str | os.PathLike[str] | None) -> bool:
    """Return whether no place says anything of taskq; those of other users are told later."""
    if any(name[: len(PREFIX)].upper() == PREFIX for name in os.environ.keys() - NO_SETTINGS):
        return False
    return not any(_speaks(place.path) for place in places_of(data_dir))


def _speaks(path: Path) -> bool:
    text = read_place(path)
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
    """See that nobody put a file for others to obey, as anybody may in a directory like /tmp.

    Raises:
        UsageError: somebody did.
    """
    if _others_may_write(path):
        owner = path.parent.stat().st_uid
        if path.stat().st_uid not in {0, os.geteuid(), owner}:
            raise UsageError(
                f"{path.absolute()} is another user's, in a directory that all may write to: "
                f"its settings are not obeyed, work in another directory"
            )


def _others_may_write(path: Path) -> bool:
    return bool(path.parent.stat().st_mode & stat.S_IWOTH)
