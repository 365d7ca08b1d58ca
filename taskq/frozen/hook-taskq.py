"""Collect modules that taskq imports by name, and its metadata with the commands' entry points."""

from PyInstaller.utils.hooks import collect_submodules, copy_metadata


def _is_of_programs(name: str) -> bool:
    return not name.startswith(("taskq.testing", "taskq.frozen", "taskq._examples"))


hiddenimports: list[str] = [
    *collect_submodules("taskq", filter=_is_of_programs),
    *collect_submodules("taskq_workers"),
]
datas: list[tuple[str, str]] = copy_metadata("taskq-local")
