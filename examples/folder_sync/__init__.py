"""Offline-first sync of a directory tree: one durable job per file, over a receiver that fails."""
