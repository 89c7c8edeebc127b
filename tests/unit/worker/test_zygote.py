import subprocess
import sys

PROGRAM = """
import os, resource, time
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
        os.write(tell, b"x")
        time.sleep(60)
    os.read(told, 1)
    os._exit(0)
os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
zygote = Zygote(Launcher())
zygote.alive[rank] = [0, 0]
zygote.reap()
"""


def test_the_time_of_what_a_rank_left_behind_is_the_jobs_when_its_end_is_told():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert float(done.stdout) >= 0.5, done.stderr
