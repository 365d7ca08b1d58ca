"""A desktop program that is frozen into one executable, and does its work in the background."""
