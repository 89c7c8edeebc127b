"""Attacks a fresh installation as a user of its own: each line says held or broken.

``python tests/tools/attack.py [--venv FOLDER | --python PYTHON] [--only NUMBER ...]``, as root. A
user is made for it, and removed afterwards with all its processes and files. Exit code 0: all lines
held; 1: one is broken; 5: this cannot be done here.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
NAME = "scalebench-attack"
STRANGER = 65534
LIMIT_S = 300.0
Process = subprocess.Popen
SECRET = "sk-CANARYxxxxxxxxxxxxxxxxxxxxxxxxxxxxCANARY"
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
    """The user whose scalebench is attacked, with a home and a temporary folder of its own."""

    def __init__(self, python: Path, uid: int, home: Path) -> None:
        self.python, self.uid, self.home, self.tmp = python, uid, home, home / "tmp"
        self.own(self.tmp)

    def own(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        return self.give(folder)

    def give(self, path: Path) -> Path:
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.uid, follow_symlinks=False)
        return path

    def write(self, path: Path, text: str) -> Path:
        self.own(path.parent)
        content = text.encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return self.give(path)

    def start(self, *command, cwd=None, uid=None, before=(), **variables) -> "Process":
        """Start the installation's interpreter as the user, or as another one with ``uid``."""
        become = "import os,sys;u=int(sys.argv[1]);os.setgroups([]);os.setgid(u);os.setuid(u);"
        become += "os.execv(sys.argv[2],sys.argv[2:])"
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.tmp)}
        return subprocess.Popen(
            [*before, sys.executable, "-c", become, str(uid or self.uid), self.python, *command],
            **{"cwd": cwd or self.home, "env": own | variables, "start_new_session": True},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"},
        )

    def run(self, *arguments, limit_s=LIMIT_S, **options) -> "subprocess.CompletedProcess[str]":
        return ended(self.start("-m", "scalebench", *arguments, **options), limit_s)

    @cached_property
    def finished(self) -> Path:
        """A finished run of a script, which was given a secret as an argument."""
        folder = self.write(self.home / "finished" / "train.py", TRAINS).parent
        script = ("--out", "r", "--", "train.py", "--api-key", SECRET)
        done = self.run("run", *SHORT, "--gpus", "1", *script, cwd=folder)
        need(done.returncode == 0, f"no run to start from: {done.stderr}")
        return folder / "r"

    def copy(self, to: Path) -> Path:
        to.parent.mkdir(exist_ok=True)
        return self.give(Path(shutil.copytree(self.finished, to)))


def ended(process: "Process", limit_s: float) -> "subprocess.CompletedProcess[str]":
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Broken(f"still running after {limit_s:.0f} s") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def end(process: "Process") -> None:
    process.terminate()
    with suppress(Broken):
        ended(process, 30)


def need(held: object, seen: object) -> None:
    if not held:
        raise Broken(" ".join(str(seen).split())[-240:])


def wait_for(condition, what: str, limit_s: float = LIMIT_S) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        need(time.monotonic() < until, f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.05)


def family(process: "Process") -> list[psutil.Process]:
    with suppress(psutil.Error):
        return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return []


def sealed(stored: dict) -> str:
    """Return a changed record with a checksum that is right again: anybody can work it out."""
    body = json.dumps({name: value for name, value in stored.items() if name != "sha256"})[:-1]
    return f'{body},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}'


def written(run: Path) -> dict[str, str]:
    """Return the files of a run and what is in them, without what a script itself printed."""
    files = [path for path in run.rglob("*") if path.is_file() and "logs" not in path.parts]
    return {path.name: told(path) for path in files}


def told(path: Path) -> str:
    """Return the text of a file of a run, unpacked."""
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode(errors="replace")


def folders_in_tmp(user: Attacked) -> None:
    """a launcher deletes nothing in the temporary folder that is not its own"""
    kept = [user.copy(user.tmp / "scalebench-ddp"), user.own(user.tmp / "scalebench-notes")]
    for folder in kept:
        user.write(folder / ".lock", "")
        user.write(folder / "results.txt", "mine")
    user.run("doctor")
    need(all((folder / "results.txt").exists() for folder in kept), "doctor deleted a folder")


def checkpoints_elsewhere(user: Attacked) -> None:
    """--resume removes no directory that run.json names outside of the run"""
    run = user.copy(user.home / "copied" / "r")
    victim = user.own(user.home / "victim")
    for path in (run / "run.json", *(run / "cells").glob("*.json.gz")):
        stored = json.loads(told(path))
        for cell in stored.get("plan", [stored.get("cell")]):
            cell["recovery"] = {"directory": str(victim)}
        user.write(path, sealed(stored))
    done = user.run("run", "--resume", str(run), "--no-report", cwd=user.finished.parent)
    need(victim.exists(), f"{victim} is gone; exit code {done.returncode}")


def two_runs_one_folder(user: Attacked) -> None:
    """a second run with the same --out changes nothing of the first"""
    folder = user.write(user.home / "twice" / "train.py", TRAINS).parent
    script = ("--gpus", "1", "--out", "r", "--", "train.py")
    first = user.start("-m", "scalebench", "run", *SHORT, *script, cwd=folder, NUM_STEPS="10000000")
    try:
        wait_for((folder / "r").exists, "the first run")
        second = user.start("-m", "scalebench", "run", *SHORT, *script, cwd=folder)
        wait_for((folder / "r/run.json").exists, "the first run's run.json")
        before = json.loads((folder / "r/run.json").read_text())
        refused = ended(second, LIMIT_S)
        need(refused.returncode == 2, f"exit code {refused.returncode}: {refused.stderr}")
        now = json.loads((folder / "r/run.json").read_text())
        need(now["created"] == before["created"], "run.json was overwritten")
    finally:
        end(first)


def another_script(user: Attacked) -> None:
    """--resume from another folder, or with a changed script, measures no other script unasked"""
    here, there = user.own(user.home / "here"), user.own(user.home / "there")
    for folder in (here, there):
        text = f"open({str(folder / 'ran')!r}, 'a').write('x')\nraise SystemExit('stop')\n"
        user.write(folder / "train.py", text)
    user.run("run", *SHORT, "--gpus", "1", "--out", "r", "--", "train.py", cwd=here)
    user.run("run", "--resume", str(here / "r"), "--no-report", cwd=there)
    need(not (there / "ran").exists(), "the script of another folder was run")
    user.write(here / "train.py", (here / "train.py").read_text() + "# changed\n")
    done = user.run("run", "--resume", str(here / "r"), "--no-report", cwd=here)
    need("--changed-script" in done.stderr and done.returncode == 2, done.stderr)


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
            end(rank)


def loopback_only(user: Attacked) -> None:
    """on one machine nothing listens beyond loopback, a script's own store neither"""
    folder = user.write(user.home / "listens" / "train.py", TRAINS).parent
    script = ("--gpus", "2", "--out", "r", "--", "train.py")
    process = user.start("-m", "scalebench", "run", *SHORT, *script, cwd=folder, NUM_STEPS="3000")
    seen: set[str] = set()
    while process.poll() is None:
        for each in family(process):
            with suppress(psutil.Error):
                sockets = each.net_connections(kind="inet")
                seen |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
        time.sleep(0.05)
    ended(process, LIMIT_S)
    need(seen, "nothing was seen that listens")
    need(seen <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, f"listens on {sorted(seen)}")


def list_runs_nothing(user: Attacked) -> None:
    """list runs no code of ./suites"""
    folder = user.own(user.home / "stranger")
    user.write(folder / "suites/own.py", "SUITE = None\nopen('ran', 'w')\n")
    user.run("list", cwd=folder)
    need(not (folder / "ran").exists(), "suites/own.py was run")


def outside_text(user: Attacked) -> None:
    """what a run folder says reaches a terminal, CSV and page without control characters"""
    run = user.copy(user.home / "hostile" / "r")
    hostile, said = "\x1b]0;owned\x07\x9b31m", []
    for path in (run / "summary.json", *(run / "cells").glob("*.json.gz")):
        stored = json.loads(told(path))
        for row in stored.get("rows", ()):
            row["unavailable"] |= {hostile: 1}
        stored |= {"reason": hostile, "status": "failed"} if "cell" in stored else {}
        user.write(path, sealed(stored))
    summary = str(run / "summary.json")
    export = ("export", str(run), "--format", "csv")
    for command in (("show", str(run)), ("compare", summary, summary), export):
        done = user.run(*command, cwd=run.parent)
        said.append(done.stdout + done.stderr)
    user.run("report", str(run), cwd=run.parent)
    said.append((run / "report.html").read_text(errors="replace"))
    said += [path.read_text(errors="replace") for path in run.parent.rglob("*.csv")]
    need("owned" in "".join(said), "the hostile text was not met: look at this check")
    need(not any(re.search(r"[\x07\x1b\x9b]", text) for text in said), "control characters")


def dollars(user: Attacked) -> None:
    """submit --kubernetes hands every $ on"""
    flags = ("--kubernetes", "--ranks-per-node", "1", "--image", "i", "--claim", "c", "--dry-run")
    done = user.run("submit", *flags, "--", "run", "--gpus", "1", "--", "t.py", "a$$b$(HOME)")
    need("a$$$$b$$(HOME)" in done.stdout, done.stdout[-160:] + done.stderr)


def anonymised(user: Attacked) -> None:
    """--anonymise leaves no path, argument or name of the machine or the user"""
    folder = user.own(user.home / "CANARY-folder")
    user.write(folder / "CANARY_train.py", TRAINS)
    script = ("--", "CANARY_train.py", "--tag", "CANARY", "10.11.12.13")
    flags = ("--anonymise", "--gpus", "1", "--out", "r")
    done = user.run("run", *SHORT, *flags, *script, cwd=folder)
    need((folder / "r/summary.json").exists(), done.stderr)
    names = ("CANARY", "10.11.12.13", NAME, f'"{socket.gethostname()}"', str(user.python))
    found = [(p, name) for p, t in written(folder / "r").items() for name in names if name in t]
    need(not found, sorted(found))


def secret_arguments(user: Attacked) -> None:
    """the value of --api-key is in no file of the run"""
    user.run("report", str(user.finished))
    found = [name for name, text in written(user.finished).items() if "CANARY" in text]
    need(not found, found)


def no_crash_is_a_regression(user: Attacked) -> None:
    """whatever goes wrong, the exit code is not that of a regression"""
    trace = user.write(user.home / "huge.json", '{"traceEvents": [{"ts": 1e999999999}]}')
    run = str(user.finished)
    closed = ("sh", "-c", 'exec "$@" >&-', "sh"), ("sh", "-c", 'exec "$@" 2>&-', "sh")
    tries = [
        (("show", run), {"before": closed[0]}),
        (("show", "nowhere"), {"before": closed[1]}),
        (("trace", str(trace)), {}),
        (("show", b"\xff\xfe"), {}),
        (("run", "ddp", b"--out=\xff", "--dry-run"), {}),
    ]
    for arguments, options in tries:
        done = user.run(*arguments, **options)
        need(done.returncode != 1, f"{arguments}: exit code 1: {done.stderr}")
        need("Traceback" not in done.stderr, f"{arguments}: {done.stderr}")


def bounds(user: Attacked) -> None:
    """neither a number, a schedule nor a FIFO holds a command up"""
    text = '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999990, "dur": 1}]}'
    user.run("trace", str(user.write(user.home / "slow.json", text)), limit_s=20)
    user.run("show", "--schedule", "1f1b", "-p", "4096", "-m", "65536", limit_s=20)
    run = user.copy(user.home / "fifo" / "r")
    for path in (run / "summary.json", run / "run.json"):
        path.unlink()
        os.mkfifo(path)
    user.run("show", str(run), limit_s=20)
    user.own(user.tmp / "scalebench-fifo")
    os.mkfifo(user.tmp / "scalebench-fifo" / ".lock")
    user.give(user.tmp / "scalebench-fifo")
    user.run("doctor", limit_s=90)


def nothing_left_running(user: Attacked) -> None:
    """a script's processes end with its launch, and SIGHUP leaves a summary"""
    folder = user.own(user.home / "hangs")
    text = (
        "import subprocess, time\np = subprocess.Popen(['sleep', '3600'], start_new_session=True)"
    )
    user.write(folder / "train.py", f"{text}\nopen('pid', 'w').write(str(p.pid))\ntime.sleep(3600)")
    flags = ("run", *SHORT, "--gpus", "1")
    done = user.run(*flags, "--time-limit", "8s", "--out", "r", "--", "train.py", cwd=folder)
    need(done.returncode == 4, done.stderr)
    pid = int((folder / "pid").read_text())
    need(not psutil.pid_exists(pid), "a child lives on after the time limit")
    (folder / "pid").unlink()
    process = user.start("-m", "scalebench", *flags, "--out", "s", "--", "train.py", cwd=folder)
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "the script")
    process.send_signal(signal.SIGHUP)
    done = ended(process, 60)
    need(done.returncode == 129, f"SIGHUP: exit code {done.returncode}")
    need((folder / "s/summary.json").exists(), "SIGHUP: no summary")
    need(not psutil.pid_exists(int((folder / "pid").read_text())), "a child outlives SIGHUP")


def no_loopback(user: Attacked) -> None:
    """where loopback is down, the first launch says so"""
    flags = ("run", "ddp", "-k", "static", *SHORT, "--gpus", "1,2", "--batch-size", "16")
    done = user.run(*flags, "--out", "down", before=("unshare", "--net"), limit_s=90)
    need(done.returncode and "loopback" in (done.stdout + done.stderr).lower(), done.stderr)


def gpu_locks(user: Attacked) -> None:
    """a GPU that is claimed is claimed for jobs with another temporary folder as well"""
    code = (
        "from scalebench.session.machine.gpu_locks import GpuClaims\nimport time\n"
        "claims = GpuClaims()\n"
        "print('shared', claims.claim(['GPU-attack'], True), flush=True)\ntime.sleep({})\n"
    )
    others = user.own(user.home / "tmp2")
    first = user.start("-c", code.format(60))
    try:
        need(first.stdout.readline().strip() == "shared []", "the first claim")
        second = ended(user.start("-c", code.format(0), TMPDIR=str(others)), 60)
        need("GPU-attack" in second.stdout, f"both hold it: {second.stdout}{second.stderr}")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def nothing_left_in_tmp(user: Attacked) -> None:
    """what SIGKILL leaves in the temporary folder goes with the next command"""
    tmp = user.own(user.home / "tmp3")
    process = user.start("-m", "scalebench", "calibrate", "--gpus", "2", TMPDIR=str(tmp))
    wait_for(lambda: len(family(process)) >= 4, "the ranks of a calibration")
    for each in family(process):
        with suppress(psutil.Error):
            each.kill()
    ended(process, 30)
    user.run("doctor", TMPDIR=str(tmp))
    left = [p.name for p in tmp.iterdir() if p.name.startswith("scalebench")]
    need(not left, left)


LINES: tuple[Callable[[Attacked], None], ...] = (
    folders_in_tmp, checkpoints_elsewhere, two_runs_one_folder, another_script, command_channel,
    loopback_only, list_runs_nothing, outside_text, dollars, anonymised, secret_arguments,
    no_crash_is_a_regression, bounds, nothing_left_running, no_loopback, gpu_locks,
    nothing_left_in_tmp,
)  # fmt: skip


def try_line(line: Callable[[Attacked], None], user: Attacked) -> str | None:
    """Return what is broken, or None: the line held."""
    try:
        line(user)
    except Broken as broken:
        return str(broken)
    except Exception as error:
        return f"the check itself failed: {type(error).__name__}: {error}"
    return None


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
    parser.add_argument("--venv", type=Path, help="Where to install; default: a temporary folder.")
    parser.add_argument("--python", type=Path, help="Of an installation that is there already.")
    parser.add_argument("--only", type=int, nargs="+", help="Numbers of lines; default: all.")
    given = parser.parse_args()
    broken = 0
    with a_user() as uid, tempfile.TemporaryDirectory(prefix="attack-") as folder:
        os.chmod(folder, 0o755)
        python = given.python or install(given.venv or Path(folder) / "venv", uid)
        home = Path(folder) / "home"
        home.mkdir()
        user = Attacked(python.absolute(), uid, home)
        user.give(home)
        for number, line in enumerate(LINES, 1):
            if given.only and number not in given.only:
                continue
            seen = try_line(line, user)
            broken += seen is not None
            told = f"{'broken' if seen else 'held':6} {number:2}  {(line.__doc__ or '').strip()}"
            print(told + (f"\n           {seen}" if seen else ""), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
