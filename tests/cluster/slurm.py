"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in one folder."""

import os
import shutil
import socket
import subprocess
import time

from tests.conftest import ran
from tests.processes import free_ports

SBIN = "/usr/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "squeue")
NODES = ("n1", "n2")
READY_LIMIT_S = 60


FIXED = """
ClusterName=test SlurmUser=root SlurmdUser=root AuthType=auth/munge MpiDefault=none
ProctrackType=proctrack/linuxproc TaskPlugin=task/none SwitchType=switch/none ReturnToService=2
SelectType=select/cons_tres SelectTypeParameters=CR_Core JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none KillWait=2
"""


FILES = [(d, node, end) for d, node in (("ctld", ""), ("d", ".%n")) for end in ("pid", "log")]


def configuration(folder, ports):
    """Both nodes are this machine, each with a port of its own."""
    host = socket.gethostname().partition(".")[0]
    places = {
        **{"AuthInfo": f"socket={folder}/munge.socket", "StateSaveLocation": f"{folder}/state"},
        **{
            f"Slurm{d}{end.title()}File": f"{folder}/slurm{d}{node}.{end}" for d, node, end in FILES
        },
        "SlurmdSpoolDir": f"{folder}/spool.%n",
        **{"SlurmctldHost": f"{host}(127.0.0.1)", "SlurmctldPort": ports[0]},
    }
    nodes = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2"
        for node, port in zip(NODES, ports[1:], strict=True)
    ]
    partition = f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP\n"
    told = [f"{name}={value}" for name, value in places.items()]
    return "\n".join([*FIXED.split(), *told, *nodes, partition])


class Slurm:
    def __init__(self, folder):
        self.folder = folder
        self.daemons = []
        self.config = folder / "slurm.conf"
        self.config.write_text(configuration(folder, free_ports(1 + len(NODES))))
        (folder / "state").mkdir()
        told = {"SLURM_CONF": str(self.config), "MASTER_ADDR": "127.0.0.1"}
        self.environment = {**os.environ, **told}

    def start(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
        names |= {"log-file": "log", "seed-file": "seed"}
        places = [f"--{option}={self.folder}/munge.{end}" for option, end in names.items()]
        self._start("munged", "--foreground", "--force", *places)
        self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-c")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self._wait_for(lambda: self.states() == ["idle"] * len(NODES), "idle nodes")

    def states(self):
        return ran(["sinfo", "-h", "-N", "-o", "%t"], env=self.environment).stdout.split()

    def jobs(self):
        return ran(["squeue", "-h", "-o", "%i"], env=self.environment).stdout.split()

    def _start(self, program, *arguments):
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}")
        with (self.folder / f"{program}.out").open("ab") as log:
            self.daemons.append(
                subprocess.Popen([path, *arguments], env=self.environment, stdout=log, stderr=log)
            )

    def _wait_for(self, condition, what):
        end = time.monotonic() + READY_LIMIT_S
        while not condition():
            dead = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            logs = {p.name: p.read_text(errors="replace")[-800:] for p in self.folder.glob("*.out")}
            assert not dead and time.monotonic() < end, f"no {what}: {dead} {logs}"
            time.sleep(0.2)

    def stop(self):
        if all(daemon.poll() is None for daemon in self.daemons):
            self._wait_for(lambda: self.states() == ["idle"] * len(NODES), "end of the jobs")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
