import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, platform, resource, sys, threading, time
from scalebench.worker.process import family
from scalebench.worker.zygote import Zygote

class Launcher:
    def sendall(self, message):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(used.ru_utime + used.ru_stime)

family.adopt_orphans()
told, tell = os.pipe()
rank = os.fork()
if rank == 0:
    if os.fork() == 0:  # as torch.compile's workers do, it works and outlives its rank
        while time.process_time() < 0.5:
            pass
        threading.Thread(target=time.sleep, args=[60]).start()
        os.write(tell, b"x")
        if sys.argv[1] == "first thread ends":
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
        time.sleep(60)
    os.read(told, 1)
    os._exit(0)
os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
zygote = Zygote(Launcher())
zygote.alive[rank] = [0, 0]
zygote.reap()
"""


@pytest.mark.parametrize("what", ["works on", "first thread ends"])
def test_the_time_of_what_a_rank_left_behind_is_the_jobs_when_its_end_is_told(what):
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True)
    assert float(done.stdout) >= 0.5, done.stderr
