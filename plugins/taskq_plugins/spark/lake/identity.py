"""``taskq-lake.json``: what makes a directory a lake."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final

from taskq.core.parsing import parse_json
from taskq_plugins.spark.lake.durable import publish, sync_directory
from taskq_plugins.spark.lake.errors import LakeDamaged, LakeError, LakeFormatError, NotALake

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "taskq-lake.json"
MANIFESTS: Final = "_manifests"
FORMAT: Final = 1
_SIZE_MAX: Final = 64 * 1024


def read_identity(path: Path) -> str:
    """The lake's id.

    Raises:
        NotALake: there is none.
        LakeFormatError: a newer taskq made it.
        LakeDamaged: the file does not read.
    """
    file = path / FILE
    try:
        with file.open("rb") as opened:
            data = opened.read(_SIZE_MAX)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotALake(path) from error
    try:
        values = parse_json(data)
        version, lake_id = values["format"], str(uuid.UUID(values["lake_id"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LakeDamaged(file, f"does not read ({error})") from error
    if version != FORMAT:
        raise LakeFormatError(file, version)
    return lake_id


def create(path: Path, now_ns: int) -> None:
    """Make a lake in a directory that is empty or not there yet; one that is there stays.

    Raises:
        LakeError: the directory holds something else.
    """
    path.mkdir(parents=True, exist_ok=True)
    others = [one.name for one in path.iterdir() if one.name != MANIFESTS and one.name[0] != "."]
    if others and FILE not in others:
        raise LakeError(
            f"{path}: is not empty and holds no lake (there is {min(others)}): "
            f"name another directory with --lake"
        )
    (path / MANIFESTS).mkdir(exist_ok=True)
    if FILE in others:
        return
    values = {"format": FORMAT, "lake_id": str(uuid.uuid4()), "created_ns": now_ns}
    try:
        publish(path / FILE, json.dumps(values, indent=2).encode() + b"\n")
    except FileExistsError:  # somebody else was faster
        return
    sync_directory(path.parent)
