"""Run ``taskq`` from a test, and the log that the tests look at."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from taskq.cli.main import main


@dataclass(frozen=True)
class Sample:
    path: Path
    ids: dict[str, str]


def taskq(*arguments: object, data: bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=data)


def taskq_json(*arguments: object) -> Any:
    result = taskq(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def state(path: Path, job_id: str) -> Any:
    return taskq_json("show", job_id, "-d", path)["state"]
