"""Asyncio-native background jobs on a local log: no broker, no server, no daemon."""
