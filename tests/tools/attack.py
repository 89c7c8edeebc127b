"""Attacks a fresh installation as a user of its own: each line says held or broken.

``python tests/tools/attack.py [--python PYTHON]``, as root. A user is made for it, and removed
afterwards with all its processes and files. Exit code 0: all lines held; 1: one is broken; 5: this
cannot be done here.
"""

import argparse
import gzip
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
NAME = "scalebench-attack"
STRANGER = 65534
LIMIT_S = 300.0
Process = subprocess.Popen
TRAINS = """
import os, torch
model = torch.nn.Linear(4, 4)
if int(os.environ["WORLD_SIZE"]) > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(int(os.environ.get("NUM_STEPS", "12"))):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
"""
SHORT = ("--quick", "--no-report", "--no-trace")


class Broken(Exception):
    """A line does not hold; the text says what was seen."""


class Attacked:
    """The user whose scalebench is attacked, with a home of its own."""

    def __init__(self, python: Path, uid: int, home: Path) -> None:
        self.python, self.uid, self.home = python, uid, home

    def write(self, path: Path, text: str) -> Path:
        """Write a file in a folder that the user may write to; return the folder."""
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for each in (path, path.parent):
            os.chown(each, self.uid, self.uid)
        return path.parent

    def start(self, *command, cwd=None, uid=None, **variables) -> "Process":
        """Start the installation's interpreter as the user, or as another one with ``uid``."""
        who = uid or self.uid
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        return subprocess.Popen(
            [self.python, *command],
            **{"user": who, "group": who, "extra_groups": []},
            **{"cwd": cwd or self.home, "env": own | variables, "start_new_session": True},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"},
        )

    def run(self, *arguments, **options) -> "subprocess.CompletedProcess[str]":
        return ended(self.start("-m", "scalebench", *arguments, **options), LIMIT_S)


def ended(process: "Process", limit_s: float) -> "subprocess.CompletedProcess[str]":
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Broken(f"still running after {limit_s:.0f} s") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def need(held: object, seen: object) -> None:
    if not held:
        raise Broken(" ".join(str(seen).split())[-240:])


def wait_for(condition, what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        need(time.monotonic() < until, f"waited {LIMIT_S:.0f} s for {what}")
        time.sleep(0.05)


def command_channel(user: Attacked) -> None:
    """another user cannot command the processes of a world through its store"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    world |= {"MASTER_PORT": str(port), "SCALEBENCH_SECRET": "32 characters of this run alone ."}
    flags = ("run", "ddp", *SHORT, "--gpus", "2", "--steps", "2000", "--out", "world")
    ranks = [
        user.start("-m", "scalebench", *flags, **world, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in (0, 1)
    ]
    attack = f"""
import json, zlib, datetime
from torch.distributed import TCPStore, PrefixStore
limit = datetime.timedelta(seconds=10)
store = PrefixStore("scalebench/0", TCPStore("127.0.0.1", {port}, None, False, limit))
place = {{"cgroup": {str(user.home / "owned")!r}}}  # a file that the agent's child writes to
start = {{"start": {{"job": "survey", "tag": [77, 1], "place": place}}}}
data = zlib.compress(json.dumps(start).encode())
for number in range(400):
    store.set(f"to/1/{{number}}/0", data)
    store.set(f"to/1/{{number}}", "1")
"""
    try:
        listens = f":{port:04X} 00000000:0000 0A"
        wait_for(lambda: listens in Path("/proc/net/tcp").read_text(), "the world's store")
        time.sleep(2)
        need(all(rank.poll() is None for rank in ranks), "the world ended before the attack")
        ended(user.start("-c", attack, uid=STRANGER, cwd=Path("/"), TMPDIR="/tmp"), 60)
        time.sleep(5)
        need(not (user.home / "owned").exists(), "rank 1 started what another user wanted")
    finally:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGKILL)


def anonymised(user: Attacked) -> None:
    """--anonymise leaves no path, argument or name of the machine or the user"""
    folder = user.write(user.home / "CANARY-folder" / "CANARY_train.py", TRAINS)
    script = ("--", "CANARY_train.py", "--api-key", "sk-CANARY", "10.11.12.13")
    flags = ("--anonymise", "--gpus", "1", "--out", "r")
    done = user.run("run", *SHORT, *flags, *script, cwd=folder)
    need((folder / "r/summary.json").exists(), done.stderr)
    names = ("CANARY", "10.11.12.13", NAME, f'"{socket.gethostname()}"', str(user.python))
    for path in (folder / "r").rglob("*"):
        if path.is_file() and "logs" not in path.parts:  # where the script itself prints
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            found = [name for name in names if name.encode() in content]
            need(not found, f"{path.name} has {found}")


def private(user: Attacked) -> None:
    """another user can read no file of a run"""
    folder = user.write(user.home / "private" / "train.py", TRAINS)
    flags = ("--gpus", "1", "--out", "r", "--", "train.py")
    done = user.run("run", *SHORT, *flags, cwd=folder)
    need((folder / "r/summary.json").exists(), done.stderr)
    tried = ended(user.start("-m", "scalebench", "show", str(folder / "r"), uid=STRANGER), 60)
    need(tried.returncode and "ddp" not in tried.stdout, f"it was shown: {tried.stdout}")


LINES = (command_channel, anonymised, private)


def install(folder: Path, uid: int) -> Path:
    """Install this checkout into a fresh environment that the user may read; return its Python."""
    bases = (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3")
    fits = "import sys; sys.exit(sys.version_info < (3, 11))"
    for base in bases:
        with suppress(OSError):
            done = subprocess.run([base, "-c", fits], user=uid, group=uid, extra_groups=[], cwd="/")
            if done.returncode == 0:
                break
    else:
        unfit(f"no Python from 3.11 on that another user may run: {', '.join(bases)}")
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    told = ("install", "-qq", "--no-compile", "-c", str(ROOT / "constraints.txt"), str(ROOT))
    subprocess.run([*pip, *told], check=True)
    return python


def unfit(why: str) -> None:
    """End with one line: this cannot be done here."""
    print(f"attack: {why}", file=sys.stderr)
    raise SystemExit(5)


@contextmanager
def a_user() -> Iterator[int]:
    """Make a user; at the end it is removed, and what it still runs."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        unfit("needs root and useradd: it attacks as a user of its own. Run it in a root sandbox.")
    name = f"{NAME}-{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/false", name], check=True)
    uid = int(subprocess.run(["id", "-u", name], check=True, capture_output=True).stdout)
    try:
        yield uid
    finally:
        for process in psutil.process_iter(["uids"]):
            if process.info["uids"] and process.info["uids"].real == uid:
                with suppress(psutil.Error):
                    process.kill()
        subprocess.run(["userdel", name], check=False, capture_output=True)


def main() -> int:
    """Try the lines; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, help="Of an installation that is there already.")
    given, code = parser.parse_args(), 0
    with a_user() as uid, tempfile.TemporaryDirectory(prefix="attack-") as folder:
        os.chmod(folder, 0o755)
        python = given.python or install(Path(folder) / "venv", uid)
        home = Path(folder) / "home"
        home.mkdir()
        os.chown(home, uid, uid)
        user = Attacked(python.absolute(), uid, home)
        for line in LINES:
            told, seen = line.__doc__, ""
            try:
                line(user)
            except Broken as broken:
                seen = str(broken)
            except Exception as error:
                seen = f"the check itself failed: {type(error).__name__}: {error}"
            print(f"broken {told}\n       {seen}" if seen else f"held   {told}", flush=True)
            code = 1 if seen else code
    return code


if __name__ == "__main__":
    sys.exit(main())
