"""The taskq command line."""
