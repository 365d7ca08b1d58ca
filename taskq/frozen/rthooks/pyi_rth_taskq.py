"""Turn a child process of a frozen program into a taskq child before the program's code runs."""

import os
import sys
from multiprocessing import spawn

if os.environ.get("_TASKQ_CHILD") == "modules" and spawn.is_forking(sys.argv):
    spawn.freeze_support()
