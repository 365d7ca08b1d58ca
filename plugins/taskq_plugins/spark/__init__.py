"""The data pipeline: task logs on Spark, for one machine or a fleet. Importing it imports no Spark."""
