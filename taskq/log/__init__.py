"""The log: the only part of taskq that touches the disk."""
