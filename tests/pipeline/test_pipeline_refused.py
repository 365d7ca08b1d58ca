"""Refusals of rows, options, files and conditions: ``refused.md``, line by line."""

from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from taskq.errors import TaskqError
from taskq_plugins.spark.lake.store import Lake
from taskq_plugins.spark.sink import writers
from taskq_plugins.spark.sink.rows import BadRow
from taskq_plugins.spark.source.options import read_options
from tests.cli.helpers import taskq
from tests.pipeline import kit
from tests.pipeline.test_pipeline_sink import known_app
from tests.terminal import answers, matches

DOCUMENT: Final = Path(__file__).with_name("refused.md").read_text()
JOBS: Final = "tests.samples.backlog_jobs"
NUMBERS: Final = StructType([StructField("n", LongType())])
#: Bytes of a column of text that are none.
WRONG_TEXT: Final = pa.Array.from_buffers(
    pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]]
)

pytestmark = pytest.mark.usefixtures("own_settings")


def bad(**row: Any) -> NoReturn:
    """Write a hundred rows, of which the one after sixty is this."""
    extra = {"value": "{}"} if "value" in row else {"n": 7}
    good = {**dict.fromkeys(row), "task": "t", **extra}
    if row.keys() == {"value"}:
        good["value"] = "{}"
    wrong = {"task": "t", **extra, **row}
    with pytest.raises(BadRow) as caught:
        kit.sink([good] * 60 + [wrong] + [good] * 39, Path("data"))
    assert caught.value.row == 60
    raise caught.value


def columns(**kinds: pa.DataType) -> object:
    batch = pa.RecordBatch.from_pylist([], schema=pa.schema(kinds))
    return kit.sink(batch, Path("data"), task="t")


def sink(row: dict[str, Any], **options: str) -> object:
    return kit.sink([row], Path("data"), None, **options)


def known(**row: Any) -> object:
    """Write a row for an app with tasks."""
    return kit.sink([row], Path("data"), known_app(Path("x")), app="jobs:app")


def written(mode: str, schema: StructType = NUMBERS, **options: str) -> Any:
    make = getattr(writers, f"{mode}_writer")
    return make({"path": "data", **options}, schema, options.pop("how", "") == "overwrite")


def command(*words: object) -> str:
    done = taskq("pipeline", *words)
    return f"{done.output}[{done.exit_code}]"


def condition(where: str) -> str:
    erased = command("erase", "--lake", "lake", "--where", where)
    replayed = command("replay", "--lake", "lake", "--where", where, "--to", "data", "--yes")
    assert erased == replayed
    return erased


def enqueue(name: str, content: bytes, *words: str) -> str:
    Path(name).write_bytes(content)
    return command("enqueue", name, "--task", "t", "--to", "data", *words)


def names_here(folder: Path) -> dict[str, Any]:
    kit.fill(folder / "lake", [kit.job(1)])
    (folder / "text").write_text("x")
    (folder / "empty").mkdir()
    names = {"schema": lambda *field: StructType([StructField(*field)]), "Lake": Lake, "pa": pa}
    names |= {
        "StringType": StringType, "read_options": read_options, "source": kit.source,
        "read_batch": kit.read_batch,
    }  # fmt: skip
    return globals() | names


def answer(typed: str, names: dict[str, Any]) -> str:
    try:
        return str(eval(typed, names))  # noqa: S307 - our own lines
    except TaskqError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "section", DOCUMENT.split("\n## ")[1:], ids=lambda text: text.partition("\n")[0]
)
def test_wrong_rows_options_and_files_are_refused_as_it_is_written(
    section: str, tmp_path: Path
) -> None:
    names = names_here(tmp_path)
    for line, expected in answers(section):
        typed = line[4:]
        output = answer(typed, names).replace(str(tmp_path), "/home/you")
        assert matches(output, expected), f"{typed}\n{output}"
        assert not [path for path in tmp_path.glob("data/**/*") if path.is_file()], typed
