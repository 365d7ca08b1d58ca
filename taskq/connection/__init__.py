"""A program's connection to a log: opened once in a process, at first use.

Begin with ``connection``; ``settings`` reads its options, ``handle`` is the result of an enqueue.
The package may import calls, conditions and lower layers.
"""
