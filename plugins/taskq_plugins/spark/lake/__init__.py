"""Tables in the format of Delta Lake, each in a directory of its name; no Spark."""
