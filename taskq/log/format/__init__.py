"""Bytes to values and back: no disk, no clock.

``codec`` is the specification of the log; begin there. ``frames`` finds whole frames and walks
their records, ``record`` shows one as people read it; the other files hold the options and records
of one kind each. May import the core alone.
"""
