"""Group commit: the requests of one turn of the lock become one frame.

Begin with ``committer``. ``answers`` go out when they are as durable as what they were derived
from; ``waiters`` wait for the log to say more. May import decide, read and what stands below them.
"""
