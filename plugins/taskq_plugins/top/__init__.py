"""``taskq top``: what goes on in a log, on a terminal, and what may be done about it."""
