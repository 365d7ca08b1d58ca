"""The open log: one mailbox, one storage thread, one port for each event loop.

Begin with ``store``. A request goes through ``port`` to ``thread``, and its answer comes back
through the port. Only this folder of the log has threads and event loops. May import all folders
below it.
"""
