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


def configuration(folder, ports):
    host, user = socket.gethostname().partition(".")[0], "root"
    return "\n".join(
        [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            "MpiDefault=none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "ReturnToService=2",
            "KillWait=2",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool.%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd.%n.log",
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2"
                for node, port in zip(NODES, ports[1:], strict=True)
            ),
            f"PartitionName=all Nodes={','.join(NODES)} Default=YES State=UP",
            "",
        ]
    )


class Slurm:
    def __init__(self, folder):
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.config = folder / "slurm.conf"
        self.config.write_text(configuration(folder, free_ports(1 + len(NODES))))
        (folder / "state").mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}

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
        told = ran(["sinfo", "-h", "-N", "-o", "%t"], env=self.environment)
        return told.stdout.split()

    def jobs(self):
        told = ran(["squeue", "-h", "-o", "%i"], env=self.environment)
        return told.stdout.split()

    def _start(self, program, *arguments):
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SBIN}")
        with (self.folder / f"{program}.out").open("ab") as log:
            self.daemons.append(
                subprocess.Popen([path, *arguments], env=self.environment, stdout=log, stderr=log)
            )

    def _wait_for(self, condition, what):
        assert callable(condition)
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
