"""``run --strategies``: one suite out of the cases of others."""

import pytest

from scalebench.errors import UsageError
from scalebench.session.suites.files import strategies_suite


@pytest.mark.parametrize(
    ("names", "cases", "workload"),
    [
        (("ddp", "fsdp", "tensor"), ["plain", "ddp", "fsdp", "tensor"], "gpt"),
        (("hsdp", "ddp"), ["plain", "hsdp", "ddp"], "gpt"),  # optional in its own suite
        (("ddp", "pipeline"), ["plain", "ddp", "gpipe", "1f1b", "interleaved-1f1b"], "gpt-deep"),
        (("ring-2-groups",), ["plain", "ring-2-groups"], "gpt-long"),
    ],
)
def test_cases_and_suites_become_one_suite(names, cases, workload):
    suite = strategies_suite(names, None)
    assert [case.name for case in suite.cases] == cases
    assert suite.workload == workload
    # One batch for all: cases of different batches are not ranked.
    assert {case.batch_size for case in suite.cases} == {None}
    assert not any(case.optional for case in suite.cases)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("ddp", "fdsp"), "no strategy 'fdsp'. Did you mean 'fsdp'?"),
        (("plain",), "no strategy 'plain'"),
        (("asynchronous",), "no strategy 'asynchronous'"),  # a race
        (("pipeline", "context"), "pipeline for gpt-deep, context for gpt-long"),
    ],
)
def test_what_cannot_be_compared_is_said(names, told):
    with pytest.raises(UsageError) as error:
        strategies_suite(names, None)
    assert told in str(error.value) and len(str(error.value)) < 300


def test_the_user_may_name_the_workload_of_unlike_strategies():
    assert len(strategies_suite(("pipeline", "context"), "gpt").cases) == 6
