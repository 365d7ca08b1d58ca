"""A desktop program, frozen into one executable, with work in the background."""
