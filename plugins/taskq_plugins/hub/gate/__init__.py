"""What stands between a hub and whoever asks it for something: HTTP, limits, what is told."""
