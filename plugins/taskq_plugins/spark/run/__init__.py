"""Bring the tables of a lake up to date with logs, batch by batch."""
