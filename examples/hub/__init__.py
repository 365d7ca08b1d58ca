"""Devices send their logs over an unreliable line to a hub that is killed several times."""
