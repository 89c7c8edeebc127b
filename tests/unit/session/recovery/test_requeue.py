"""A job that Slurm starts again: its script, run for real with programs in Slurm's place."""

import os
import subprocess

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.session.recovery import faults, requeue
from scalebench.session.recovery.faults import wanted_faults
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec.recovery import Recovery
from tests.builders.runs import make_cell


def failing(world_size=2, **changes):
    plan = Recovery(directory="/somewhere", restarted_by=("slurm",), fault_repeats=1)
    return make_cell("ddp", world_size).model_copy(
        update={"purpose": "fail", "recovery": plan, **changes}
    )


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return what puts a program onto the PATH, which has nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name, body="exit 0"):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)

    return put


def run_script(tmp_path, programs, exit_code, restarts):
    """Return the script's exit code, and how the ranks' program and scontrol were called."""
    programs("python", f'echo "ranks $GLOO_SOCKET_IFNAME $*"; exit {exit_code}')
    programs("scontrol", 'echo "scontrol $*"')
    folder = FaultFolder(tmp_path / "a folder")
    script = tmp_path / "job.sh"
    script.write_text(
        requeue.batch_script(failing(), folder, "python", {"GLOO_SOCKET_IFNAME": "lo 1"})
    )
    of_slurm = {"SLURM_JOB_ID": "7"} | ({"SLURM_RESTART_COUNT": restarts} if restarts else {})
    done = subprocess.run(
        ["/bin/bash", str(script)], env={**os.environ, **of_slurm}, capture_output=True, text=True
    )
    assert done.stderr == ""
    ranks, *rest = done.stdout.splitlines()
    assert ranks.startswith("ranks lo 1 -m scalebench.worker.checkpoints.slurm_step")
    assert ranks.count(str(folder.root)) == 2
    assert "srun --kill-on-bad-exit=1 --ntasks=2" in ranks
    return done.returncode, rest


def test_a_job_whose_rank_fails_is_requeued_once(tmp_path, programs):
    assert run_script(tmp_path, programs, 137, restarts=None) == (0, ["scontrol requeue 7"])
    assert run_script(tmp_path, programs, 137, restarts="1") == (1, [])


@pytest.mark.parametrize("restarts", [None, "1"])
def test_a_job_that_comes_to_its_end_is_not_requeued(tmp_path, programs, restarts):
    assert run_script(tmp_path, programs, 0, restarts) == (0, [])


def test_the_job_runs_on_this_machine_with_a_task_for_each_rank(tmp_path):
    command = requeue.submit_command(failing(threads=3), "n1", tmp_path / "s", tmp_path / "50%")
    assert {"--nodelist=n1", "--nodes=1", "--ntasks=2", "--cpus-per-task=3", "--requeue"} <= {
        *command
    }
    assert f"--output={tmp_path}/50%%" in command, "a % stands for something in sbatch's names"
    assert not [word for word in command if "gpus" in word]
    on_gpus = requeue.submit_command(failing(device="cuda"), "n1", tmp_path, tmp_path)
    assert "--gpus-per-node=2" in on_gpus


def test_this_machine_is_found_by_its_host_name():
    table = "n1 other\nn2 here.example.org\nn3 here\n"
    assert requeue.node_of(table, "here") == "n2"
    assert requeue.node_of(table, "here.elsewhere.org") == "n2"
    assert requeue.node_of(table, "nowhere") is None
    assert requeue.node_of("", "here") is None


def test_without_slurm_the_missing_program_is_named(programs):
    with pytest.raises(EnvironmentUnfit, match=r"no sbatch on the PATH\. Run scalebench on a node"):
        requeue.check_requeue([failing()])
    other = failing().model_copy(update={"recovery": Recovery()})
    requeue.check_requeue([other, failing(purpose="save")])  # they need no Slurm


@pytest.mark.parametrize(
    ("sinfo", "why"),
    [
        ("echo 'sinfo: error: no answer' >&2; exit 1", "sinfo says 'sinfo: error: no answer'"),
        ("echo n1 another-host", "is no node of its. Run scalebench on a node of the cluster"),
    ],
)
def test_a_machine_on_which_slurm_runs_nothing_is_refused(programs, sinfo, why):
    for name in requeue.PROGRAMS:
        programs(name)
    programs("sinfo", sinfo)
    with pytest.raises(EnvironmentUnfit, match=why):
        requeue.check_requeue([failing()])


def test_a_rejected_job_is_said_with_slurms_reason(tmp_path, programs, monkeypatch):
    monkeypatch.setattr(requeue, "own_node", lambda: "n1")
    programs("sbatch", "echo 'not that many CPUs' >&2; exit 1")
    with pytest.raises(NoTimeline, match=r"sbatch rejected .*requeue\.sh: not that many CPUs"):
        requeue.run_requeued(failing(), FaultFolder(tmp_path), tmp_path, at_once=False)


@pytest.fixture
def queue(monkeypatch, tmp_path):
    """Return what runs a job through given states; it returns the calls of scontrol."""
    monkeypatch.setattr(requeue, "POLL_S", 0)

    def run(states, at_once, fails=0, gone_s=-1.0, revoked_s=0.0):
        monkeypatch.setattr(requeue, "REVOKED_S", revoked_s)
        monkeypatch.setattr(requeue, "GONE_S", gone_s)
        folder, asked, left = FaultFolder(tmp_path), [], iter([*states, ""])

        def call(program, *words):
            if program == "scontrol":
                asked.append(words)
                return subprocess.CompletedProcess(words, int(len(asked) <= fails))
            state = next(left)
            if state == "fails":
                folder.note(0, AGENT, "stopped")
                state = "COMPLETING (None)"
            if state == "starts again":
                folder.note(1, 0, "started")
                state = RUNNING
            code = int(state.startswith("error"))
            return subprocess.CompletedProcess(words, code, "" if code else f"{state}\n", state)

        monkeypatch.setattr(requeue, "_call", call)
        requeue._wait_for_end("7", folder, at_once)
        assert next(left, None) is None, "every state was seen"
        return asked

    return run


WAITING, RUNNING = "PENDING (Resources)", "RUNNING (None)"
REQUEUED = "PENDING (BeginTime)"
START = ("update", "jobid=7", "StartTime=now")


def test_only_a_requeued_job_is_told_to_start_at_once_and_only_if_asked(queue):
    states = [WAITING, RUNNING, "fails", REQUEUED, REQUEUED, RUNNING]
    assert queue(states[:3], at_once=True) == [], "no rank has failed while it waits or runs"
    assert queue(states, at_once=False) == []


def test_it_is_not_told_while_nodes_still_reject_the_job(queue):
    assert queue(["fails", REQUEUED, REQUEUED], at_once=True, revoked_s=60.0) == []


def test_it_is_told_again_until_slurm_takes_it(queue):
    states = [WAITING, "fails", REQUEUED, REQUEUED, REQUEUED, RUNNING]
    assert queue(states, at_once=True, fails=1) == [START, START]


def test_a_job_on_its_way_back_to_the_queue_has_not_ended(queue):
    states = ["fails", "", "", REQUEUED, "", "starts again"]
    assert queue(states, at_once=True, gone_s=60.0) == [START]


def test_a_job_that_never_comes_back_to_the_queue_has_ended(queue):
    assert queue(["fails"], at_once=True, gone_s=-1.0) == []


def test_a_job_that_slurm_does_not_answer_for_has_not_ended(queue):
    assert queue([RUNNING, "error: timed out", RUNNING], at_once=False) == []


def test_a_job_that_never_ends_is_given_up_with_its_state(queue, monkeypatch):
    monkeypatch.setattr(requeue, "PATIENCE_S", -1)
    with pytest.raises(NoTimeline, match=r"job 7 did not end .* Slurm has it PENDING \(Resou"):
        queue([WAITING], at_once=False)


def fails_under_slurm(monkeypatch, tmp_path, *outside):
    """Return how a failure went after which no rank was started again."""

    def run(cell, folder, logs, at_once):
        for name in outside:
            folder.note(0, AGENT, name)
        return logs / "slurm.log"

    monkeypatch.setattr(faults, "run_requeued", run)
    monkeypatch.setattr(faults, "_noted", lambda *_: 1)
    recovery = failing().recovery.model_copy(
        update={"directory": str(tmp_path), "faults": ("raise",), "elastic": False}
    )
    return faults.measure_faults(None, failing(recovery=recovery), tmp_path / "logs", "now")


def test_a_job_that_did_not_start_again_is_said_with_what_slurm_printed(monkeypatch, tmp_path):
    none = fails_under_slurm(monkeypatch, tmp_path)
    assert none.reason.startswith(
        "slurm: failure 1 of the job, raise of rank 1: it did not come as planned; see "
    )
    lost = fails_under_slurm(monkeypatch, tmp_path, "noticed", "stopped")
    assert lost.status == "failed"
    assert "a rank that was started again did not come to 'started'; see " in lost.reason
    assert lost.reason.endswith("/logs/0/slurm.log")


def test_ranks_under_slurm_are_killed_or_raise():
    assert list(wanted_faults(failing())) == [("slurm", "kill"), ("slurm", "raise")]
