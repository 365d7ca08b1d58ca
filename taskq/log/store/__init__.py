"""The open log: one mailbox, one storage thread, one port for each event loop.

Begin with ``store``; a request goes through ``port`` to ``thread``, and its answer comes back by
``waking``. The one room of the log that knows threads and event loops. May import all below it.
"""
