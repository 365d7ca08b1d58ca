"""One process's access to the end of the log: lock, append, sync, recover.

Begin with ``journal``. ``lock`` is the writer lock with its turnstile, ``recovery`` repairs the log
after a crash. May import segments and folders below it.
"""
