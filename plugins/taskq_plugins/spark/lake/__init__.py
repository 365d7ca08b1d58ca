"""Tables in the format of Delta Lake, each in a directory with its name; without Spark."""
