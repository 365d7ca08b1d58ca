"""A shop in FastAPI that confirms orders in the background."""
