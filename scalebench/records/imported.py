"""What was read of the logs of jobs that ran elsewhere, as an imported run keeps it."""

from typing import Literal

from pydantic import Field, FiniteFloat

from scalebench.records.base import LARGE, Record

IMPORTED_FORMAT = "scalebench.imported/1"

Work = Literal["sample", "token", "flop"]


class ImportedLog(Record):
    """One log: one job, or one of several that repeat it.

    Attributes:
        name: Of the file.
        format: How it prints its steps.
        world_size: GPUs of the job.
        global_batch: Samples of a step of the job; null: neither the log nor the user says.
        seq: Tokens of a sample; null: likewise.
        model: What it says of its model: name → value.
        gpu: The device's name; empty: not said.
        software: Driver, torch, NCCL → version, as far as it names them.
        step_s: What steps took, or stretches of steps in the mean, seconds; pauses, the first steps
            and all but the part after a restart left out.
        counts: How many steps each of them stands for.
        averaged: They are means of several steps.
        source: Where they come from: the printed times, the clock, a rate, or a total.
        no_steps: Why there are none; empty: there are.
        warmup: Records left out at the beginning.
        num_pauses: What was cut out: evaluations, checkpoints and the like.
        pause_s: What they took together, seconds.
        samples_per_s, tokens_per_s: Of the job; null: not known.
        tflops_per_gpu: TFLOP/s, as printed.
        mfu: As printed, or printed FLOP/s over the device's peak.
        bad_loss_at: Step from which on the loss is not finite; null: it is.
        notices: What a reader has to know.
    """

    name: str
    format: str
    world_size: int = Field(ge=1, lt=LARGE)
    global_batch: FiniteFloat | None = None
    seq: FiniteFloat | None = None
    model: dict[str, str | float] = {}
    gpu: str = ""
    software: dict[str, str] = {}
    step_s: list[FiniteFloat] = []
    counts: list[FiniteFloat] = []
    averaged: bool = False
    source: str = "printed"
    no_steps: str = ""
    warmup: int = 0
    num_pauses: int = 0
    pause_s: FiniteFloat = 0.0
    samples_per_s: FiniteFloat | None = None
    tokens_per_s: FiniteFloat | None = None
    tflops_per_gpu: FiniteFloat | None = None
    mfu: FiniteFloat | None = None
    memory_bytes: int | None = Field(None, ge=0, lt=LARGE)
    loss_first: FiniteFloat | None = None
    loss_last: FiniteFloat | None = None
    bad_loss_at: FiniteFloat | None = None
    notices: list[str] = []


class ImportedRun(Record):
    """``imported.json``.

    Attributes:
        case: What the job is called.
        per: What efficiency is per, where model or batch differ; null: per step.
        logs: In the order in which they were given.
    """

    format: str = IMPORTED_FORMAT
    case: str
    per: Work | None = None
    logs: list[ImportedLog]

    def environment(self) -> dict[str, object]:
        """Return what the logs name of GPUs and software: what has to be the same."""
        names = dict.fromkeys(name for log in self.logs for name in log.software)
        found = {
            name: ", ".join(dict.fromkeys(v for log in self.logs if (v := log.software.get(name))))
            for name in names
        }
        gpus = dict.fromkeys(log.gpu for log in self.logs if log.gpu)
        return {"devices": [{"name": name} for name in gpus], **found, "imported": True}
