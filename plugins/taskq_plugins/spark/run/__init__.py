"""From logs to the tables of a lake, batch by batch."""
