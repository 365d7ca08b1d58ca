"""The objects of a program: ``TaskQ``, ``TaskLog`` and ``Task``.

Begin with ``app``; ``holder`` has the common methods of ``TaskQ`` and ``TaskLog``, ``tasks`` makes
tasks of functions. The package may import every lower room of the API.
"""
