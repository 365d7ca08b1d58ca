"""The pure core: records in, decisions out. No disk, no clock, no threads."""
