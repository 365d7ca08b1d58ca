"""The files of a log, and indexes of their records.

Begin with ``segments``; then ``indexes`` (one record, all records of one job) and ``index`` (one
segment's index, and the specification of ``.idx`` files). May import format and machine.
"""
