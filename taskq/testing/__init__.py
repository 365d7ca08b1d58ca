"""Stand-ins for the machine, for tests: a disk that forgets, a clock that steps, peers that die.

``CrashableDisk`` and ``FakeClock`` implement the ports of ``taskq.log.ports``, ``SimulatedPeers``
the one for the processes that share a directory. With them a test drives ``taskq.log.committer``
step by step, in one thread, and takes the power away wherever it likes.
"""
