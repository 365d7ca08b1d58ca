"""A program's hold on a log: opened at first use, in this process, once.

Begin with ``connection``; ``settings`` is where its choices come from, ``handle`` is what an
enqueue gives back. May import calls, conditions and what stands below them.
"""
