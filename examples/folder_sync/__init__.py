"""Offline-first sync of a directory tree to an unreliable receiver: one durable job per file."""
