"""An agent that pays once for each of its model's answers."""
