"""The mark of a row whose framework is in a version that is not tested."""

from scalebench.analysis.summarise import summarise
from scalebench.spec import DeepSpeed
from tests.builders.runs import make_cell, make_record, make_result, make_run
from tests.examples import cases

CELL = make_cell("deepspeed", 2, strategy=DeepSpeed(), suite="frameworks")


@cases(
    "told, mark",
    ({"untested": []}, None),
    ({"untested": ["deepspeed"]}, "version not tested: deepspeed 9.0"),
    (
        {"untested": ["deepspeed"], "tested": {"deepspeed": "0.19.8"}},
        "version not tested: deepspeed 9.0 (tested: 0.19.8)",
    ),
)
def test_a_mark_names_the_version_and_the_tested_one(told, mark):
    facts = {"framework": {"versions": {"deepspeed": "9.0"}, "settings": {}, **told}}
    ranks = [make_record(rank, facts=facts) for rank in (0, 1)]
    (row,) = summarise(make_run([make_result(CELL, ranks=ranks)])).rows
    assert [one for one in row.stamps if "not tested" in one] == ([mark] if mark else [])
