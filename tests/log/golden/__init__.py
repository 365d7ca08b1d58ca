"""Logs of some version, which every later one opens; each names its expected contents."""
