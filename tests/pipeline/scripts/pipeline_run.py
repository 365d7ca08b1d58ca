"""Run ``taskq pipeline run`` with small shares: ``pipeline_run.py STEP TABLE ARGUMENTS``.

At that step of a table's commit it says ``here`` and stands still, to be killed; with "" it does
not. Steps are ``staged``, ``created``, ``committing``, ``committed`` (in Delta's log, not synced
yet) and ``durable``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from taskq.cli.main import main
from taskq_plugins.spark.lake import LakeWriter
from taskq_plugins.spark.run import batch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Records of a share: a batch has several, which executors fold.
SHARE_ROWS = 100
STEPS: dict[str, tuple[type, str]] = {
    "staged": (LakeWriter, "stage"),
    "created": (DeltaTable, "create"),
    "committing": (DeltaTable, "create_write_transaction"),
    "committed": (DeltaTable, "create_write_transaction"),
    "durable": (LakeWriter, "commit"),
}


def stand_still(step: str, table: str) -> None:
    """Have the process stand still where that comes."""
    owner, name = STEPS[step]
    act: Callable[..., Any] = getattr(owner, name)

    def stopping(*args: Any, **options: Any) -> Any:
        if step == "committing":
            _stop_at(args, table)
        done = act(*args, **options)
        if step != "committing":
            _stop_at(args, table)
        return done

    setattr(owner, name, stopping)


def _stop_at(args: tuple[Any, ...], table: str) -> None:
    """Stop where the call names the table: itself, or by its directory."""
    shown = [arg.table_uri if isinstance(arg, DeltaTable) else arg for arg in args]
    if table in {Path(item).name for item in shown if isinstance(item, str)}:
        print("here", flush=True)  # noqa: T201 - it tells its parent
        threading.Event().wait()


if __name__ == "__main__":
    batch.SHARE_ROWS = SHARE_ROWS  # type: ignore[misc]
    if sys.argv[1]:
        stand_still(*sys.argv[1:3])
    sys.argv[1:] = ["pipeline", "run", *sys.argv[3:]]
    main(prog_name="taskq")
