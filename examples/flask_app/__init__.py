"""A service in Flask that counts words in the background."""
