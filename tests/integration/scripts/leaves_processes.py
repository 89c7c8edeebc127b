"""Starts processes of several kinds; then it hangs, fails, or trains and ends."""

import os
import subprocess
import sys
import time

HEEDS = """
import os, signal, sys, time
def leave(*_):
    open(sys.argv[1], "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print(flush=True)
time.sleep(3600)
"""
IS_DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(3600)"

rank, trouble, size = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2])
if int(os.environ["WORLD_SIZE"]) != size:
    trouble = "ends"
name = f"{os.environ['WORLD_SIZE']}.{rank}"
heeds = subprocess.Popen(
    [sys.executable, "-c", HEEDS, f"asked{name}"], stdout=subprocess.PIPE, start_new_session=True
)
heeds.stdout.readline()
deaf = subprocess.Popen([sys.executable, "-c", IS_DEAF])
orphan = subprocess.run(
    ["sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, check=True
)
with open(f"part{name}", "w") as file:
    file.write(f"{os.getpid()} {heeds.pid} {deaf.pid} {int(orphan.stdout)}")
os.replace(f"part{name}", f"pids{name}")
if trouble == "hangs":

    def hang_here():
        time.sleep(3600)

    hang_here()
elif trouble == "fails" and rank == 1:
    raise RuntimeError("a trouble of its own")
elif trouble == "fails":
    time.sleep(3600)

import torch  # noqa: E402

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
