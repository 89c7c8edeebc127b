"""A framework that is not installed is skipped with the command that installs it."""

from scalebench.session.plan.unavailable import why_missing, without_missing_frameworks
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Horovod
from tests.builders.runs import make_cell


def test_what_is_missing_is_named_with_the_command():
    assert why_missing(DeepSpeed(), lambda _: None) == (
        "deepspeed is not installed; pip install 'scalebench[deepspeed]'"
    )
    behind = Accelerate(plugin="deepspeed", stage=2)
    only_accelerate = {"accelerate": "1.15.0"}.get
    assert why_missing(behind, only_accelerate) == (
        "deepspeed and transformers are not installed; "
        "pip install 'scalebench[accelerate,deepspeed]'"
    )
    assert str(why_missing(behind, lambda _: None)).startswith(
        "accelerate, deepspeed and transformers are not installed; "
    )
    assert why_missing(DeepSpeed(), lambda _: "0.19.8") is None
    assert why_missing(Ddp(), lambda _: None) is None
    assert "; make horovod" in str(why_missing(Horovod(), lambda _: None))


def test_only_its_own_cells_are_skipped_and_earlier_reasons_stay():
    cells = [
        make_cell("ddp", 1).model_copy(update={"strategy": strategy, "skip_reason": reason})
        for strategy, reason in ((Ddp(), None), (DeepSpeed(), None), (DeepSpeed(), "too large"))
    ]
    skipped = [one.skip_reason for one in without_missing_frameworks(cells, lambda _: None)]
    assert skipped[0] is None
    assert skipped[1] is not None and "not installed" in skipped[1]
    assert skipped[2] == "too large"
