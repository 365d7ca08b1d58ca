"""``taskq top``: show a log on a terminal, and change jobs and queues by keys."""
