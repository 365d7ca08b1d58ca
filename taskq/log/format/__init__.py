"""Bytes to values and back: no disk, no clock.

``codec`` is the specification of the log; begin there. ``frames`` finds whole frames and their
records, ``record`` decodes a record for tools and people. Each other file has the options and
records of one kind. May import only the core.
"""
