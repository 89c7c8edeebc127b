"""``compare`` begins with one sentence: how much faster, and with how much more memory."""

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.gate.result import SAME_RUN
from scalebench.report.gate.sentence import sentence
from tests.builders.gated import gated, gated_run, with_row

BEFORE = gated_run(seed=1, cases=("ddp",))
NUMBERS = re.compile(r"(\d\.\d+) ± (\d\.\d+)")


def after(factor, **changes):
    run = gated_run({("ddp", 4): factor}, seed=2, cases=("ddp",))
    return with_row(run, "ddp", 4, **changes)


@pytest.mark.parametrize(
    ("factor", "changes", "told", "ratio"),
    [
        (1 / 1.08, {}, "new is # times as fast as base (ddp, 4 ranks); memory equal.", 1.08),
        (1.21, {}, "new takes # times as long as base (ddp, 4 ranks); memory equal.", 1.21),
        (
            1.0,
            {"peak_memory_bytes": 176_000_000},
            "No difference in speed is seen between new and base: # times as fast "
            "(ddp, 4 ranks); memory +10.0 %.",
            1.0,
        ),
        (
            1.5,
            {"peak_memory_bytes": None},
            "new takes # times as long as base (ddp, 4 ranks); memory not known.",
            1.5,
        ),
    ],
)
def test_the_largest_size(factor, changes, told, ratio):
    text = sentence(gated(BEFORE, after(factor, **changes)))
    assert NUMBERS.sub("#", text) == told
    value, half = map(float, NUMBERS.search(text).groups())
    assert value == pytest.approx(ratio, abs=0.005) and 0 < half < 0.01


def test_one_launch_has_no_interval_and_several_cases_are_summed_up():
    base, new = (gated_run(num_launches=1, seed=seed) for seed in (1, 2))
    text = sentence(gated(base, new))
    assert "too few launches for an interval (ddp, 4 ranks; all 2 cases: " in text


def test_what_cannot_be_compared_is_not_given_a_number():
    other = with_row(after(1.2), "ddp", 4, num_parameters=7)
    other = with_row(with_row(other, "ddp", 2, num_parameters=7), "plain", 1, num_parameters=7)
    text = sentence(gated(BEFORE, other))
    assert text.startswith("How fast new is against base is not known: they differ in ")
    assert "times" not in text
    elsewhere = gated_run(cases=("fsdp",))
    elsewhere = elsewhere.model_copy(update={"rows": elsewhere.rows[1:]})
    base = BEFORE.model_copy(update={"rows": BEFORE.rows[1:]})
    assert sentence(gated(base, elsewhere)).endswith(
        "they have no case in common that both have measured."
    )


def test_one_run_twice_needs_no_sentence():
    assert sentence(replace(gated(BEFORE, after(1.0)), notes=(SAME_RUN,))) == ""
    assert sentence(replace(gated(BEFORE, after(1.0)), rows=())) == ""


def test_compare_begins_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.json").write_text(BEFORE.model_dump_json())
    (tmp_path / "after.json").write_text(after(0.5).model_dump_json())
    words = ["compare", "before.json", "after.json"]
    shown = CliRunner().invoke(cli, words, env={"COLUMNS": "200"}).output
    shown = NUMBERS.sub("#", shown)
    assert shown.startswith("after.json is # times as fast as before.json (ddp, 4 ranks); memory")
    assert CliRunner().invoke(cli, [*words, "--json"]).output.startswith("{")
