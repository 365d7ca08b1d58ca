"""``taskq worker`` as a process: signals, lines, several of them under a guard.

Begin with ``running``; one worker's process is ``supervisor``, several are ``guard``.
"""
