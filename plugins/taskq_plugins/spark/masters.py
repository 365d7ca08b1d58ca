"""The names that Spark gives to where it runs: on this machine, or elsewhere."""

from __future__ import annotations

import re
import socket
from typing import Final

from taskq.errors import UsageError
from taskq_plugins.spark.errors import SparkError

_LOCAL: Final = re.compile(r"local(\[(\*|\d+)(,\s*\d+)?\])?")
#: How the names of masters begin that run executors of their own on this machine.
LOCAL_CLUSTER: Final = "local-cluster"
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]")
_ELSEWHERE: Final = re.compile(r"(spark://|k8s://).+|yarn")
_ADDRESS: Final = re.compile(r"(?P<host>[^,:]+|\[[^\]]+\]):(?P<port>\d{1,5})")
#: What a master of our own kind gets to accept a connection.
_CONNECT_SECONDS: Final = 3.0


def is_local(master: str) -> bool:
    """Return whether driver and executors are all on this machine."""
    return bool(_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master))


def check_master(master: str) -> None:
    """Refuse a name that Spark does not know, and a ``spark://`` that does not answer.

    Raises:
        UsageError: Spark has no such kind of master.
        SparkError: nobody listens there. Spark itself would try for minutes.
    """
    if is_local(master):
        return
    if not _ELSEWHERE.fullmatch(master):
        raise UsageError(
            f"Spark knows no master {master!r}: give local[2], local[*], "
            f"local-cluster[2,1,1024], spark://host:7077, k8s://https://host:443 or yarn"
        )
    if master.startswith("spark://"):
        _check_any(master)


def _check_any(master: str) -> None:
    """One of several is enough: the others stand by."""
    addresses = _ADDRESS.findall(master.removeprefix("spark://"))
    if not addresses:
        raise UsageError(f"the master {master!r} names no port: write spark://host:7077")
    problems = []
    for host, port in addresses:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            problems.append(f"{host}:{port}: {error}")
        else:
            return
    raise SparkError(
        f"the master {master} does not answer ({'; '.join(problems)}): start it, or use "
        f"--master local[*] to run on this machine"
    )
