"""A fleet of devices, each with a task log, and the tables that Spark computes from all logs."""
