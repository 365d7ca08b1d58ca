"""Print the live owners of a log. Usage: owners.py DIRECTORY."""

from __future__ import annotations

import sys

from taskq.log.read.reader import LogReader

for view in LogReader.open(sys.argv[1]).owners():
    sys.stdout.write(f"{view.owner} {view.alive}\n")
