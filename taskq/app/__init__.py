"""The objects that a program holds: ``TaskQ``, ``TaskLog`` and ``Task``.

Begin with ``app``; ``shared`` is what ``TaskQ`` and ``TaskLog`` have in common, ``tasks`` and
``decorate`` make a task of a function. May import every room of the API below it.
"""
