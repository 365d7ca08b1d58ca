"""The taskq command line: thin commands over the reader and the API."""
