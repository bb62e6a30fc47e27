"""Run a script on real ranks: python real_ranks.py NUM SCRIPT [ARGUMENT]... Torch is imported once; ranks are forks."""

import os
import runpy
import sys
import traceback

import torch.distributed  # noqa: F401 (before the fork)

num, sys.argv = int(sys.argv[1]), sys.argv[2:]
children = []
for rank in range(num):
    pid = os.fork()
    if pid == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num), LOCAL_WORLD_SIZE=str(num))
        code = 1
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    children.append(pid)
sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in children))
