"""Devices send their logs to a hub over a line that drops, while the hub is killed."""
