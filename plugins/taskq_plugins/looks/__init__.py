"""Views of a log for people: the values and charts of the page and of ``top``."""
