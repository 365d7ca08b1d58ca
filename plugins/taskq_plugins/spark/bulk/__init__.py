"""Jobs from files and from past jobs, by the million."""
