import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import Case, Plain, Race, Recipe, Suite
from scalebench.errors import UsageError
from scalebench.spec.presets import PRESETS, resolve_workload
from scalebench.spec.script import ScriptTarget, evaluate, script_from
from scalebench.spec.suites import matches
from tests.examples import cases


def test_the_large_models_have_the_published_sizes():
    for name, millions in {"gpt-124m": 124.4, "gpt-350m": 354.8, "gpt-1.3b": 1315.6}.items():
        assert PRESETS[name].num_parameters / 1e6 == pytest.approx(millions, rel=0.002)


MISSPELT = {"gpt-tny": "gpt-tiny", "gtp": "gpt", "cnn20": "cnn-20", "gpt-124M": "gpt-124m"}


@cases("given", *MISSPELT)
def test_a_misspelt_name_is_answered_with_the_nearest_and_all_valid_ones(given):
    with pytest.raises(UsageError, match=f"Did you mean {MISSPELT[given]!r}?") as error:
        resolve_workload(given, "cpu")
    told = str(error.value)
    assert all(name in told for name in (repr(given), *PRESETS, "module:function"))


@cases(
    "name",
    *(":", "m:", ":f", "m:f:g", "m.:f", ".m:f", "a..b:f", "m:f.g", "m :f", "m: f", "m:f()"),
    *("my-models:f", "path/to/m.py:f", "m:1f", "C:\\models:f", "m:f\n"),
)
def test_what_is_no_module_and_function_is_refused_with_an_example(name):
    with pytest.raises(UsageError, match="MODULE:FUNCTION") as error:
        resolve_workload(name, "cpu")
    assert repr(name) in str(error.value)


@given(st.text(max_size=20))
def test_any_text_is_a_workload_or_a_usage_error(name):
    try:
        found = resolve_workload(name, "cpu")
    except UsageError:
        return
    family = name.partition("+")[0] in ("gpt", "gpt-deep", "gpt-long", "gpt-moe", "cnn", "mlp")
    assert found.name == name or family


@cases(
    "expression, name, chosen",
    ("bucket-1mb", "ddp-bucket-1mb", True),
    ("plain or ddp and bucket", "plain", True),  # and binds closer than or
    ("not ddp and bucket", "ddp-bucket-1mb", False),  # not binds closest
    ("  ( ddp )  ", "ddp", True),
    ("android", "android", True),  # a word that begins with a keyword
    ("1.3b", "gpt-1.3b", True),
)
def test_what_an_expression_chooses(expression, name, chosen):
    assert matches(expression, name) is chosen


@cases(
    "expression",
    *("", "  ", "(", ")", "(ddp", "ddp)", "()", "ddp plain", "(ddp) plain"),
    *("not", "and", "or", "ddp and", "ddp or", "and ddp", "or ddp", "not and", "ddp and or"),
    *("ddp & plain", "ddp,plain", "d*", "'ddp'", "ddp and (plain or)", "ddp not plain"),
)
def test_what_cannot_be_read_is_an_error_that_shows_it(expression):
    with pytest.raises(UsageError, match=r"cannot be read") as error:
        matches(expression, "ddp")
    assert repr(expression) in str(error.value)


EXPRESSIONS = st.recursive(
    st.sampled_from(["ddp", "plain", "bucket", "x", "1mb"]),
    lambda inner: st.one_of(
        *(inner.map(form.format) for form in ("not {}", "({})")),
        *(st.tuples(inner, inner).map(word.join) for word in (" and ", " or ")),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.sampled_from(["ddp", "plain", "ddp-bucket-1mb", "nothing"]))
def test_and_or_not_mean_what_they_mean_in_python(expression, name):
    tokens = expression.replace("(", "( ").replace(")", " )").split()
    keywords = ("and", "or", "not", "(", ")")
    python = " ".join(t if t in keywords else str(t in name) for t in tokens)
    assert matches(expression, name) is eval(python)


def test_the_rate_rises_over_the_warm_up_and_stays_and_is_scaled_with_the_batch():
    recipe = Recipe(learning_rate=0.8, warmup_samples=400)
    rates = [recipe.rate_after(n) for n in (100, 200, 400, 401, 10**6)]
    assert rates == pytest.approx([0.2, 0.4, 0.8, 0.8, 0.8])
    assert Recipe(learning_rate=0.8).rate_after(1) == 0.8
    for rule, rate in {"kept": 0.1, "sqrt": 0.2, "linear": 0.4}.items():
        scaled = Recipe(learning_rate=0.1).for_batch(4, rule)
        assert scaled.learning_rate == pytest.approx(rate)


@given(st.integers(2, 20), st.integers(1, 100), st.integers(1, 2000) | st.none())
def test_the_target_is_set_at_an_evaluation_before_the_last(evaluations, every, after):
    try:
        race = Race(samples=evaluations * every, evaluate_every=every, target_after=after)
    except ValidationError as error:
        assert "before its last evaluation" in str(error)
        return
    assert race.baseline_samples % every == 0
    assert every <= race.baseline_samples <= race.samples - every


def test_a_race_compares_with_plain_training():
    plain, race = Case(name="plain", strategy=Plain()), Race(samples=400, evaluate_every=100)
    assert Suite(name="r", question="?", cases=(plain,), race=race).baseline is plain


HERE = "/usr/bin/python3.11"


@cases(
    "words, expected",
    ("train.py", ("train", "train.py", False, ())),
    ("src/Train_GPT.py -m x", ("train-gpt", "src/Train_GPT.py", False, ("-m", "x"))),
    ("python train.py", ("train", "train.py", False, ())),
    ("python3 -m pkg", ("pkg", "pkg", True, ())),
    ("___.py", ("script", "___.py", False, ())),
)
def test_how_a_script_is_called(words, expected):
    found = script_from(words.split(), HERE)
    told = (found.name, found.program, found.module, found.arguments)
    assert (told, found.python) == (expected, HERE)


def test_placeholders_are_replaced_and_other_braces_are_not():
    words = ("--b={rank_batch}", '{"a": {world_size}}', "{x}")
    script = ScriptTarget(name="t", program="t.py", arguments=words)
    assert script.arguments_for({"rank_batch": 8, "world_size": 2}) == ["--b=8", '{"a": 2}', "{x}"]
    assert script.takes_batch and script.depends_on_size


SAMPLES = {
    "64": 64,
    "{global_batch}*4": 128,
    "rank_batch * world_size // 2": 16,
    "{global_batch}/3": 32 / 3,
}


def test_samples_per_step():
    sizes = {"world_size": 2, "global_batch": 32, "rank_batch": 16}
    assert {one: evaluate(one, sizes) for one in SAMPLES} == pytest.approx(SAMPLES)
    for expression in ("", "x", "0", "-1", "1/0", "print(1)", "2**99", "'a'", "1 +"):
        with pytest.raises(UsageError, match="is not a number of samples"):
            evaluate(expression, sizes)
