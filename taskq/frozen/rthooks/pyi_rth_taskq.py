"""Makes a child of a frozen program before its own code runs, whether or not that asks for it."""

import os
import sys
from multiprocessing import spawn

if os.environ.get("_TASKQ_CHILD") == "modules" and spawn.is_forking(sys.argv):
    spawn.freeze_support()
