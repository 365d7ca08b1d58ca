"""Reads of a log for people and streams; nothing here writes.

Begin with ``reader``, which opens a directory without a lock. An open log answers the same
questions from its journal and facets. May import state and folders below it, never decide.
"""
