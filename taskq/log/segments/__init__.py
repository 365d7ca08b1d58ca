"""The files of a log, and what finds a record in them.

Begin with ``segments``; then ``lookup`` (one record) and ``indexes`` (all of one job).
``index_format`` is the specification of the ``.idx`` files. May import format and machine.
"""
