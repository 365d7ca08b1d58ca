"""Look at a log for people: what the page and ``top`` show, and the pictures that they draw."""
