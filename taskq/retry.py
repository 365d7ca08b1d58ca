"""Retry policies: ``@task(retry=retry.exponential(attempts=5, cap="5m"))``."""

from __future__ import annotations

from taskq.core.retry import (
    Decision,
    Die,
    RetryAfter,
    RetryPolicy,
    exponential,
    fixed,
    linear,
    never,
)

__all__ = [
    "Decision",
    "Die",
    "RetryAfter",
    "RetryPolicy",
    "exponential",
    "fixed",
    "linear",
    "never",
]
