"""Run a command of ``taskq pipeline`` with small shares: ``pipeline_run.py STEP TABLE COMMAND…``.

At that step of a table's commit it prints ``here`` and stops, to be killed; with "" it does not.
Steps are ``staged``, ``created``, ``committing``, ``committed`` (in Delta's log, not synced yet)
and ``durable``; ``noting`` and ``noted`` belong to last_batch.json.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from taskq.cli.main import main
from taskq_plugins.spark.lake import deltalog, files, store
from taskq_plugins.spark.lake.deltalog import DELTA_LOG
from taskq_plugins.spark.lake.store import LakeWriter
from taskq_plugins.spark.run import batch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Records of a share: a batch has several, which executors fold.
SHARE_ROWS = 100
#: Small files of a day that are written together.
SMALL_FILES = 3
#: The call of each step, and whether it has returned then.
STEPS: dict[str, tuple[Any, str, bool]] = {
    "staged": (LakeWriter, "stage", True),
    "created": (DeltaTable, "create", True),
    "committing": (deltalog, "append", False),
    "committed": (files, "sync_directory", False),
    "durable": (LakeWriter, "commit", True),
    "noting": (store, "publish", False),
    "noted": (store, "publish", True),
}


def stand_still(step: str, table: str) -> None:
    owner, name, has_returned = STEPS[step]
    act: Callable[..., Any] = getattr(owner, name)

    def stopping(*args: Any, **options: Any) -> Any:
        done = act(*args, **options) if has_returned else None
        parts = [Path(arg).parts[-2:] for arg in args if isinstance(arg, (str, Path))]
        # Data files are synced likewise before the commit.
        if any(table in part and (step != "committed" or DELTA_LOG in part) for part in parts):
            print("here", flush=True)  # noqa: T201 - it tells its parent
            threading.Event().wait()
        return done if has_returned else act(*args, **options)

    setattr(owner, name, stopping)


if __name__ == "__main__":
    batch.SHARE_ROWS = SHARE_ROWS  # type: ignore[misc]
    store.SMALL_FILES_MAX = SMALL_FILES  # type: ignore[misc]
    if sys.argv[1]:
        stand_still(*sys.argv[1:3])
    sys.argv[1:] = ["pipeline", *sys.argv[3:]]
    main(prog_name="taskq")
