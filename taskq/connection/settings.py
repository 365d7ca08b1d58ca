"""Settings of an app from code, ``TASKQ_…`` variables, and files in three places."""

from __future__ import annotations

import os
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from taskq.calls.habits import near_option, option_instead
from taskq.connection import logoptions
from taskq.core import durations, errors, model
from taskq.core.model import Mode
from taskq.log import config
from taskq.log.format.bodies import Compression
from taskq.log.machine.access import geteuid
from taskq.log.machine.system import system


def _seconds(value: durations.Duration) -> float:
    # The environment holds only text; a bare number means seconds, as everywhere.
    try:
        return durations.seconds(float(value) if isinstance(value, str) else value)
    except ValueError:
        return durations.seconds(value)


def _seconds_or_never(value: durations.Duration | None) -> float | None:
    return None if value is None or value == durations.NEVER else _seconds(value)


def _seconds_or_always(value: durations.Duration) -> float:
    # None means the log's own value.
    return config.ALWAYS_SECONDS if value == durations.NEVER else _seconds(value)


def _named(value: object) -> object:
    if value == "":
        raise ValueError("name a directory, or leave it out")
    return system.named(value) if isinstance(value, str | Path) else value


def _names(value: object) -> object:
    # The environment holds only text: names separated by commas.
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _lower(value: object) -> object:
    # Python writes its levels in capitals.
    return value.lower() if isinstance(value, str) else value


#: Kubernetes sets variables with the addresses of services, such as a service named taskq-hub.
_SERVICES: Final = re.compile(
    r"TASKQ_(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)",
    re.IGNORECASE,
)


def _check_environment() -> tuple[str, ...]:
    """Refuse variables that are similar to a setting.

    Returns:
        Other variables with the prefix: another program's, or misspelled.
    """
    known = [*Settings.model_fields, *(f"hub_{name}" for name in HubSettings.model_fields)]
    strange = list[str]()
    for given, text in os.environ.items():
        name = given.lower().removeprefix(logoptions.PREFIX.lower())
        if name == given.lower() or given in logoptions.NO_SETTINGS or _SERVICES.fullmatch(given):
            continue
        if name in known:
            if name != "data_dir" and not _is_text(text):
                raise errors.UsageError(f"{given} in the environment holds bytes that are no UTF-8")
            continue
        near = near_option(name, known)
        if near:
            raise errors.UsageError(
                f"the environment holds {given}, which is no setting: "
                f"did you mean {logoptions.PREFIX}{near.upper()}?"
            )
        strange.append(given)
    return tuple(strange)


class QueueSettings(BaseModel):
    """Options of one queue; see ``QueuePolicy``."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    #: how payloads and results are compressed: "zlib", "zstd" or "none"
    compress: Compression | None = None
    #: seconds, text such as "7d", or "never": how long finished jobs are kept after their end
    keep: Annotated[float, BeforeValidator(_seconds_or_always)] | None = None
    #: how long dead letters are kept after their death, in the same forms
    keep_dead: Annotated[float, BeforeValidator(_seconds_or_always)] | None = None
    #: most dead letters of the queue, counted separately
    dead_max: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_values(cls, given: Any) -> Any:
        if not isinstance(given, config.QueuePolicy):
            return given
        return {
            name: getattr(given, unit) for name, unit in logoptions.named_in_units(cls.model_fields)
        }

    def policy(self) -> config.QueuePolicy:
        """Return the settings as a ``QueuePolicy``."""
        return config.QueuePolicy(**logoptions.in_units(dict(self)))


class HubSettings(BaseModel):
    """The hub that ``taskq sync`` sends the log to."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    #: its address, such as https://hub.example
    url: str = ""
    #: the file that holds the token of this device
    token_file: Path | None = None
    #: the token itself, if secrets are kept in the environment
    token: SecretStr | None = None
    #: certificates of the hub's authority, unless the machine trusts it already
    ca: Path | None = None
    #: how long the hub must have had records before they may be removed here
    grace: Annotated[float, BeforeValidator(_seconds)] = 2 * 86_400.0
    #: longest time without sending new records, and without contact to the hub
    every: Annotated[float, BeforeValidator(_seconds)] = 30.0
    poll: Annotated[float, BeforeValidator(_seconds)] = 900.0
    #: compression of frames in transit, "zlib" or "none"
    compress: Literal["none", "zlib"] = "zlib"
    #: id of this machine; by default from /etc/machine-id, and empty in a container
    machine: str | None = None
    #: names of tasks that the hub may enqueue here, such as photos.*; none by default
    accept: tuple[str, ...] = ()
    #: conditions for sending: "on_power", "unmetered", "online"
    requires: tuple[Literal["on_power", "unmetered", "online"], ...] = ()
    #: traffic over a metered line: "never" any, "tail" for records within metered_bytes_per_day,
    #: "all" as over other lines
    metered: Literal["never", "tail", "all"] = "tail"
    metered_bytes_per_day: ByteSize = ByteSize(5 * 2**20)
    #: most bytes that are sent in a second; no limit by default
    rate: Annotated[ByteSize, Field(ge=1_024)] | None = None


def _log_fields() -> dict[str, Any]:
    """Return the numbers, durations and switches of ``LogOptions`` as fields of a model."""
    fields: dict[str, Any] = {}
    defaults = config.LogConfig()
    for name, unit in logoptions.named_in_units(logoptions.LogOptions.__annotations__):
        default = getattr(defaults, unit)
        if name in logoptions.NUMBERS:
            kind: Any = int if name in logoptions.COUNTS else ByteSize
            default = default and kind(default)
            kind = kind | None if name in logoptions.OR_NONE else kind
        elif name in logoptions.SPANS:
            read, or_none = logoptions.SPANS[name]
            kind = Annotated[float, BeforeValidator(_seconds)]
            if read is durations.seconds_or_never:
                kind = Annotated[float | None, BeforeValidator(_seconds_or_never)]
            kind = kind | None if or_none else kind
        elif name in logoptions.SWITCHES:
            kind = bool
        else:
            continue
        fields[name] = (kind, default)
    return fields


if TYPE_CHECKING:
    _LogSettings = BaseModel
else:
    _LogSettings = create_model("_LogSettings", **_log_fields())


class Settings(BaseSettings, _LogSettings):
    """Settings of a TaskQ; the first source wins, in the order of the module's title.

    Durations are seconds or text such as "5m". Options of the log are as in ``LogOptions``.

    The log's own ``taskq.toml`` wins over ``.env``, ``taskq.toml`` and ``pyproject.toml`` of the
    working directory. These are ignored if the log's directory is given, since a program may be
    started in any directory, and they may not name a hub. ``taskq/taskq.toml`` in the user's
    configuration has the lowest priority.

    This module is imported only if code, environment or a file sets anything: pydantic-settings
    takes 0.1 s.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=logoptions.PREFIX,
        frozen=True,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        # A .env holds other programs' variables too; taskq's own files are checked when read.
        extra="ignore",
    )

    #: the directory of the log
    data_dir: Annotated[Path, BeforeValidator(_named)] = Path(logoptions.DATA_DIR_DEFAULT)
    durability: model.Durability = model.Durability.FSYNC
    name: str = ""
    #: lowest level that ``taskq worker`` writes to stderr
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = (
        logoptions.LOG_LEVEL_DEFAULT
    )
    #: format of its log lines: text for people, or a JSON document each
    log_format: Literal["text", "json"] = logoptions.LOG_FORMAT_DEFAULT
    compress: Compression = "none"
    #: plugins of other packages for workers, in this order: entry points of ``taskq.plugins``
    plugins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    queues: dict[str, QueueSettings] = Field(default_factory=dict)
    #: the hub of this machine; TASKQ_HUB_URL, TASKQ_HUB_TOKEN_FILE, TASKQ_HUB_TOKEN
    hub: HubSettings | None = None
    mode: Mode | None = None

    _files: tuple[Path, ...] = ()
    _strange: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Absolute paths of the files that set an option."""
        return self._files

    @property
    def sources(self) -> str:
        """Names of these files, and variables that are no setting, as text for people."""
        strange = [f"{name} in the environment is no setting" for name in self._strange]
        return "; ".join(filter(None, [", ".join(map(str, self._files)), *strange]))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - its caller names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, the first wins."""
        if isinstance(env_settings, EnvSettingsSource):
            given = env_settings.env_vars.items()
            env_settings.env_vars = {
                name: value for name, value in given if not _SERVICES.fullmatch(name)
            }
        named = init_settings().get("data_dir", env_settings().get("data_dir"))
        tables = [InitSettingsSource(settings_cls, values) for _, values in _file_values(named)]
        return init_settings, env_settings, *tables

    def log_config(self) -> config.LogConfig:
        """Return the settings that are options of the log."""
        given = {name: getattr(self, name) for name in logoptions.LogOptions.__annotations__}
        given["queues"] = {name: queue.policy() for name, queue in self.queues.items()}
        return config.LogConfig(**logoptions.in_units(given))


def _file_values(data_dir: str | os.PathLike[str] | None) -> list[tuple[Path, dict[str, Any]]]:
    """Return the settings of each file, nearest first, without empty ones."""
    near = [(place, _table(place)) for place in logoptions.settings_places(data_dir)[1:]]
    named = next((values["data_dir"] for _, values in near if "data_dir" in values), None)
    log = logoptions.settings_places(data_dir, named and Path(named))[0]
    tables = [(log, _table(log, may_move=False)), *near]
    for place, values in tables:
        if "hub" in values and place.is_near:
            _warn(f"{place.path}: its [hub] is not obeyed: move that to {log.path.absolute()}")
            del values["hub"]
    return [(place.path.absolute(), values) for place, values in tables if values]


def _table(place: logoptions.SettingsFile, *, may_move: bool = True) -> dict[str, Any]:
    path = place.path
    text = logoptions.read_plain_file(path)
    if text is None:
        return {}
    logoptions.refuse_planted(path)
    if path.name == logoptions.DOTENV:
        values = DotEnvSettingsSource(Settings, env_file=path, env_file_encoding="utf-8")()
        return {name: values[name] for name in Settings.model_fields if name in values}
    if path.name == logoptions.PYPROJECT:
        return _table_of_project(path, text)
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise errors.UsageError(f"{path} is no TOML: {error}") from None
    known = Settings.model_fields.keys() - (set() if may_move else {"data_dir"})
    if unknown := table.keys() - known:
        raise errors.UsageError(f"{path}: {_no_setting(min(unknown), known)}")
    if isinstance(table.get("hub"), dict):
        _check_hub(place, table["hub"])
    return table


def _table_of_project(path: Path, text: str) -> dict[str, Any]:
    """Return ``[tool.taskq]``; an empty table if the file is broken or has none."""
    try:
        tool = tomllib.loads(text).get("tool", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if "tool.taskq" in text:
            _warn(f"{path}: nothing of it is obeyed: it is no TOML: {error}")
        return {}
    table = tool.get("taskq", {}) if isinstance(tool, dict) else {}
    problem = _problem_of(table)
    if problem:
        _warn(f"{path}: nothing of [tool.taskq] is obeyed: {problem}")
    return {} if problem else table


def _problem_of(table: Any) -> str:
    """Return why a table is no table of settings; "" if it is one."""
    if not isinstance(table, dict):
        return "tool.taskq is no table"
    if unknown := table.keys() - Settings.model_fields.keys():
        return _no_setting(min(unknown), Settings.model_fields)
    for name, value in table.items():
        try:
            _read(name, value)
        except ValidationError as error:
            return f"{name} is {error.errors()[0]['msg']}"
    return ""


def _read(name: str, value: Any) -> Any:
    """Return a setting converted to its type. Raises ValidationError."""
    field = Settings.model_fields[name]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind).validate_python(value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_setting(name: str, known: Iterable[str]) -> str:
    return f"there is no setting {name!r}: {option_instead(name, known, 'settings')}"


def _check_hub(place: logoptions.SettingsFile, hub: dict[str, Any]) -> None:
    """Check that the file belongs to this user, and resolve its paths from its folder."""
    if not place.is_near and place.path.stat().st_uid not in {0, geteuid()}:
        raise errors.UsageError(
            f"{place.path} is another user's: it may have no [hub]: take that out"
        )
    for name in ("token_file", "ca"):
        if isinstance(hub.get(name), str):
            hub[name] = str(place.path.absolute().parent / hub[name])


def _warn(problem: str) -> None:
    warnings.warn(problem, stacklevel=2)


def settings_files(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the absolute paths of the files that set an option.

    Args:
        data_dir: the log's directory, if code or a command line names it.
    """
    return [path for path, _ in _file_values(data_dir or os.environ.get("TASKQ_DATA_DIR"))]


def silent_settings(data_dir: Path, given: Mapping[str, Any]) -> Settings:
    """Return the settings of an app configured by code alone; files are not read."""
    read = {name: _read(name, value) for name, value in given.items()}
    return Settings.model_construct(data_dir=data_dir, **read)


def load_settings(base: Settings | None, **given: Any) -> Settings:
    """Return the settings, overridden by the given values that are not None.

    Raises:
        UsageError: a setting is wrong; the message names it and its variable.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if base is not None:
        if not chosen:
            return base
        chosen = {**base.model_dump(), **chosen}
    strange = _check_environment()
    try:
        loaded = Settings(**chosen)
        loaded._strange = strange
        loaded._files = tuple(settings_files(chosen.get("data_dir")))
    except ValidationError as error:
        raise errors.UsageError(_explained(error, chosen)) from None
    except SettingsError as error:
        raise errors.UsageError(_no_json(error)) from None
    except RecursionError as error:
        raise errors.UsageError(f"settings: one is nested too deeply: {error}") from None
    return loaded


def _no_json(error: SettingsError) -> str:
    # The error contains the name only in its text.
    name = next((field for field in Settings.model_fields if f'"{field}"' in str(error)), "")
    more = "…" if name == "hub" else ""
    return (
        f"settings: {name} ({logoptions.PREFIX}{name.upper()}{more}) is no JSON, as lists and "
        f"tables must be in the environment: {error.__cause__}"
    )


def _explained(error: ValidationError, chosen: Mapping[str, Any]) -> str:
    problems = []
    files = _file_values(chosen.get("data_dir") or os.environ.get("TASKQ_DATA_DIR"))
    for detail in error.errors(include_url=False, include_context=False):
        name, first = ".".join(str(part) for part in detail["loc"]), str(detail["loc"][0])
        place = variable = logoptions.PREFIX + first.upper()
        if first not in chosen and not any(it.upper().startswith(variable) for it in os.environ):
            place = next((str(path) for path, values in files if first in values), variable)
        problems.append(f"{name} ({place}) is {detail['input']!r:.60}: {detail['msg']}")
    return "settings: " + "; ".join(problems)
