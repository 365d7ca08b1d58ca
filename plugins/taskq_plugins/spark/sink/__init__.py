"""What ``df.write.format("taskq")`` writes."""
