"""The service's tasks. Routes enqueue them, ``flask worker`` runs them."""

from __future__ import annotations

import os
from collections import Counter

from taskq import TaskQ

# The log is opened at first use, so a server may fork its processes after this import.
jobs = TaskQ(os.environ.get("WORDS_DIR", "jobs"))


@jobs.task(queue="words", retry=3, keep="1d")
def count_words(text: str) -> dict[str, int]:
    """Return the three most frequent words with their counts."""
    words = text.split()
    if not words:
        raise ValueError("there are no words in this text")
    return dict(Counter(words).most_common(3))
