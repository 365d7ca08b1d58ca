"""One process's hold on the end of the log: lock, append, sync, recover.

Begin with ``journal``. ``lock`` is the writer lock with its turnstile, ``recovery`` what is done
after a crash. May import segments and what stands below it.
"""
