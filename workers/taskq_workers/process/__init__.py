"""``taskq worker`` as a process: signals, output, several workers under a guard.

Begin with ``running``; ``supervisor`` runs one worker's process, ``guard`` several.
"""
