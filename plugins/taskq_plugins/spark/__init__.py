"""The data pipeline: task logs on Spark. Importing this package imports no Spark."""
