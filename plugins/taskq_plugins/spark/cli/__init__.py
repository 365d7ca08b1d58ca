"""The commands ``taskq pipeline …``."""
