"""Group commit: the requests of one turn of the lock become one frame.

Begin with ``committer``. An answer goes out when it is as durable as its source. May import decide,
read and the folders below them.
"""
