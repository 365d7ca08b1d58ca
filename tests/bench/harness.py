"""Share what all benchmarks need: interpreters, options, directories, children, figures, tables."""

import argparse
import atexit
import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MIB: Final = 1024 * 1024


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Read the command line: ``--name VALUE`` of the default's type, ``--name`` where it is False.

    A tuple stands for choices that can be repeated, and a type for a value without a default.
    There is always ``--dir``, a directory of the disk that is to be measured, and ``--python``, an
    interpreter that goes on in place of this one. What this machine is is printed, and at the end
    how busy others kept it.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in {"dir": Path.cwd(), "python": Path, **defaults}.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, action="append", choices=default)
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(
                flag, type=type(default), default=default, help="(default: %(default)s)"
            )
    given = parser.parse_args()
    # Like an installed package, independent of the caller's environment.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if given.python is not None:
        _go_on(str(given.python))
    if not getattr(given, "json", False):
        print(machine(given.dir))
        others = Others()
        atexit.register(lambda: print(f"\n{others}"))
    return given


def _go_on(python: str) -> None:
    """Let another interpreter run the same command, with this tree installed for it."""
    at = sys.argv.index("--python")
    words = (*sys.argv[1:at], *sys.argv[at + 2 :])
    python, _ = installed(python, "taskq-local", "-e", str(ROOT), directory=kept_for(python))
    program = sys.modules["__main__"].__spec__
    assert program is not None
    module = program.name.removesuffix(".__main__")
    # Whichever tree the environment was made for: this one is measured.
    places = (ROOT, ROOT / "workers", ROOT / "plugins")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, places))
    os.execv(python, (python, "-m", module, *words))  # noqa: S606 - no shell is wanted


INSTALL_SECONDS_MAX: Final = 600
_VERSION: Final = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"


def kept_for(python: str) -> Path:
    name = str(Path(python).resolve()).strip("/").replace("/", "-")
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "taskq-bench", name)


def installed(base: str, package: str, *words: str, directory: Path) -> tuple[str, str]:
    """The interpreter that has the package, and the package's version.

    It is ``base`` itself, or a virtual environment of it that is made at first use and then kept:
    remove it to have a newer one.

    Raises:
        subprocess.CalledProcessError: pip could not install it; ``stderr`` says why.
    """
    if version := _version(base, package):
        return base, version
    place = directory / package
    python = str(place / "bin" / "python")
    if not _version(python, package):
        print(f"installing {package} into {place}", file=sys.stderr)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        for command in ((base, "-m", "venv", "--clear", place), (*pip, *(words or (package,)))):
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX
            )
    return python, _version(python, package)


def _version(python: str, package: str) -> str:
    try:
        output = subprocess.run(
            (python, "-c", _VERSION, package), check=True, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return output.stdout.strip()


def build() -> str:
    """Return how the interpreter was built: optimized by a profile, linked as a whole, or not."""
    words = str(sysconfig.get_config_var("CONFIG_ARGS"))
    if "--enable-optimizations" in words:
        return "PGO and LTO" if "--with-lto" in words else "PGO"
    if sysconfig.get_config_var("PGO_PROF_USE_FLAG") == "":
        # Debian's build flags do not show its optimizations.
        return "PGO by its distributor"
    return "no PGO"


def machine(directory: Path) -> str:
    cpu = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    disk = subprocess.run(
        ("df", "--output=fstype", directory), check=True, capture_output=True, text=True
    )
    return (
        f"{dt.datetime.now(dt.UTC).date()}, {os.cpu_count()} cores of {cpu}, "
        f"{disk.stdout.split()[-1]}, Linux {platform.release()}, "
        f"Python {platform.python_version()} ({build()})"
    )


class Others:
    """Measures the load of other processes."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic(), self._seconds()

    @staticmethod
    def _seconds() -> float:
        words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
        user, nice, system, _, _, *others = map(int, words)
        busy = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
        return busy - sum(os.times()[:4])

    def __str__(self) -> str:
        took = time.monotonic() - self._began
        share = max(self._seconds() - self._before, 0) / took
        load = " ".join(f"{load:.1f}" for load in os.getloadavg())
        return f"in {took:,.0f} s others took {share:.2f} of {os.cpu_count()} cores; load {load}"


@contextlib.contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        dir=parent or Path.cwd(), prefix=".bench-", ignore_cleanup_errors=True
    ) as name:
        yield Path(name).absolute()


def serve(parts: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Be the child process that the command line asks for, if it does: see ``ask``."""
    if len(sys.argv) > 1 and sys.argv[1] in parts:
        print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
        sys.exit()


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    """Return a fresh Python that runs the module, with pipes to talk through."""
    return subprocess.Popen(
        (sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == f"{word}\n", f"{process.args!r} says {line!r}, not {word!r}"


def answer(process: subprocess.Popen[str], timeout_seconds: float = 600) -> dict[str, Any]:
    """Return the last line that the process prints, once it has ended well."""
    output, _ = process.communicate(timeout=timeout_seconds)
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}"
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def ask(module: str, *arguments: object) -> dict[str, Any]:
    return answer(start(module, *arguments))


def rss_bytes(pid: int | str = "self") -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads that now live in the process (Linux)."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return spent / 1e9


def family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{member}/task").iterdir():
                members += map(int, (task / "children").read_text(encoding="ascii").split())
    return members


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


class Table:
    """Rows under a title, printed with each column as wide as it needs."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title = title
        self.rows: list[Sequence[str]] = [columns]

    def row(self, *cells: object) -> None:
        self.rows.append([str(cell) for cell in cells])

    def figure(self, what: str, value: float, unit: str, limit: float | None = None) -> None:
        kept = "" if limit is None else f"≤ {limit:g} {'yes' if value <= limit else 'NO'}"
        self.row(what, f"{value:,.3f}", unit, kept)

    def print(self) -> None:
        """Print the whole as Markdown; the first column left, the figures right."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        print(f"\n{self.title}\n" if self.title else "")
        for index, cells in enumerate(self.rows):
            first = cells[0].ljust(widths[0])
            rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
            print("|", " | ".join((first, *rest)), "|")
            if index == 0:
                print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
