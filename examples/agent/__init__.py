"""An agent whose answers are paid once."""
