"""The sink of ``df.write.format("taskq")``."""
