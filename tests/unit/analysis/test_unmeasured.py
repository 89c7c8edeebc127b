"""Nothing measured is no success: a case that was asked for, and whose rows were all skipped."""

import pytest

from scalebench.analysis.unmeasured import unmeasured_cases
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Tensor
from tests.builders.runs import make_cell

STRATEGIES = {"ddp": Ddp(), "tensor": Tensor(), "acc": Accelerate(), "deep": DeepSpeed()}
NOT_REACHED = "not run: the run is over budget"


class Row:
    """Stands for a summary's row, which has only these of a plan's."""

    suite = "s"

    def __init__(self, case: str, status: str, reason: str | None) -> None:
        self.case, self.status, self.reason = case, status, reason
        self.strategy = STRATEGIES[case].kind


@pytest.mark.parametrize(
    ("rows", "unmeasured"),
    [
        ({"ddp": (None, None)}, []),
        ({"ddp": (None, "too few GPUs")}, []),
        ({"ddp": (None, None), "tensor": ("no plan", "no plan")}, ["s: tensor"]),
        ({"deep": ("not installed",), "acc": (None,)}, []),
        ({"ddp": (None,), "deep": ("none",), "acc": ("none",)}, ["s: other frameworks"]),
        ({}, []),
    ],
)
def test_of_a_plan_and_of_a_run(rows, unmeasured):
    told = [(case, why) for case, reasons in rows.items() for why in reasons]
    ran = [Row(case, "skipped" if why else "ok", why) for case, why in told]
    assert unmeasured_cases(ran) == unmeasured
    planned = [
        make_cell(case, suite="s", strategy=STRATEGIES[case], skip_reason=w) for case, w in told
    ]
    assert unmeasured_cases(planned) == unmeasured


@pytest.mark.parametrize(
    ("status", "reason"), [("failed", "why"), ("oom", "why"), ("skipped", NOT_REACHED)]
)
def test_what_failed_or_was_not_reached_was_not_skipped(status, reason):
    assert unmeasured_cases([Row("ddp", status, reason)]) == []
