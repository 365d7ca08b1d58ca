"""Bulk enqueue: files of jobs that anybody may write, published in one step.

Begin with ``writer``: ``PartWriter``, ``publish`` and ``discard`` are what producers use, from
wherever they run. The ``adopter`` makes jobs of what was published, slice by slice. May import
commit and what stands below it.
"""
