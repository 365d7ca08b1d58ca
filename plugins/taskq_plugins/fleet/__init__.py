"""Finding many task logs, their segments, and how far each may be read: needs taskq alone."""
