"""Logs as some version wrote them, which every later one opens; each says what it must hold."""
