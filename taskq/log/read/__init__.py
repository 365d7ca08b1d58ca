"""Looks for people and streams; nothing here writes.

Begin with ``reader``, which opens a directory without a lock. A look in an open log gets the same
answers from its journal and facets. May import state and what stands below it, never decide.
"""
