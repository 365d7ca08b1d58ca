"""Count the lines of this tree by folder, beside the lines of a revision.

python -m tests.lines [REVISION]
"""

import subprocess
from collections import Counter

import click

from tests.words import FOLDERS, ROOT


def counted(*revision: str) -> Counter[str]:
    command = ["git", "-C", str(ROOT), "grep", "-c", "", *revision, "--", *FOLDERS]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rooms = Counter[str]()
    for row in listed.splitlines():
        *_, path, lines = row.split(":")
        parts = path.split("/")[:-1]
        if path.endswith(".py"):
            rooms["/".join(parts[: 3 if parts[0] == "plugins" else 2])] += int(lines)
    return rooms


@click.command()
@click.argument("revision", required=False)
def main(revision: str | None) -> None:
    now, before = counted(), counted(revision) if revision else Counter[str]()
    for name, count in [*now.most_common(), ("all", now.total())]:
        was = before.total() if name == "all" else before[name]
        click.echo(f"{name:40} {count:8,}" + (f" {was:8,}" if revision else ""))


if __name__ == "__main__":
    main()
