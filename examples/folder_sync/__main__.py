"""``python -m folder_sync [DIRECTORY]``: what ``taskq demo`` does, without its options."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path

from .display import display
from .processes import SyncFailed
from .run import Options, run


def main() -> int:
    """Sync the directory, print the summary; returns the exit code."""
    source = Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("stdlib")).resolve()
    with tempfile.TemporaryDirectory(prefix="folder-sync-") as name:
        work = Path(name)
        try:
            with display() as shown:
                summary = run(Options(source=source, work=work, queue=work / "queue"), shown)
        except SyncFailed as error:
            print(error, file=sys.stderr)
            return 1
    print("\n".join(summary.lines()))
    return 0 if summary.identical else 1


if __name__ == "__main__":
    sys.exit(main())
