import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import Case, Ddp, Plain, Race, Recipe, Suite
from scalebench.errors import UsageError
from scalebench.spec.presets import PRESETS, resolve_workload
from scalebench.spec.script import ScriptTarget, evaluate, script_from
from scalebench.spec.selection import matches


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt-124m", 124.4), ("gpt-350m", 354.8), ("gpt-1.3b", 1315.6)]
)
def test_the_large_models_have_the_published_sizes(name, millions):
    assert PRESETS[name].num_parameters / 1e6 == pytest.approx(millions, rel=0.002)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("gpt-tny", "gpt-tiny"), ("gtp", "gpt"), ("cnn20", "cnn-20"), ("gpt-124M", "gpt-124m")],
)
def test_a_misspelt_name_is_answered_with_the_nearest_and_all_valid_ones(given, nearest):
    with pytest.raises(UsageError) as error:
        resolve_workload(given, "cpu")
    assert f"Did you mean {nearest!r}?" in str(error.value)
    assert repr(given) in str(error.value)
    assert all(name in str(error.value) for name in PRESETS)
    assert "module:function" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *(":", "m:", ":f", "m:f:g", "m.:f", ".m:f", "a..b:f", "m:f.g", "m :f", "m: f", "m:f()"),
        *("my-models:f", "path/to/m.py:f", "m:1f", "C:\\models:f", "m:f\n"),
    ],
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


@pytest.mark.parametrize(
    ("expression", "name", "chosen"),
    [
        ("bucket-1mb", "ddp-bucket-1mb", True),
        ("plain or ddp and bucket", "plain", True),  # and binds closer than or
        ("not ddp and bucket", "ddp-bucket-1mb", False),  # not binds closest
        ("  ( ddp )  ", "ddp", True),
        ("android", "android", True),  # a word that begins with a keyword
        ("1.3b", "gpt-1.3b", True),
    ],
)
def test_what_an_expression_chooses(expression, name, chosen):
    assert matches(expression, name) is chosen


@pytest.mark.parametrize(
    "expression",
    [
        *("", "  ", "(", ")", "(ddp", "ddp)", "()", "ddp plain", "(ddp) plain"),
        *("not", "and", "or", "ddp and", "ddp or", "and ddp", "or ddp", "not and", "ddp and or"),
        *("ddp & plain", "ddp,plain", "d*", "'ddp'", "ddp and (plain or)", "ddp not plain"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_shows_it(expression):
    with pytest.raises(UsageError, match=r"cannot be read") as error:
        matches(expression, "ddp")
    assert repr(expression) in str(error.value)


WORDS = st.sampled_from(["ddp", "plain", "bucket", "x", "1mb"])
EXPRESSIONS = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        inner.map("not {}".format),
        inner.map("({})".format),
        st.tuples(inner, inner).map(" and ".join),
        st.tuples(inner, inner).map(" or ".join),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.sampled_from(["ddp", "plain", "ddp-bucket-1mb", "nothing"]))
def test_and_or_not_mean_what_they_mean_in_python(expression, name):
    tokens = expression.replace("(", "( ").replace(")", " )").split()
    keywords = ("and", "or", "not", "(", ")")
    python = " ".join(t if t in keywords else str(t in name) for t in tokens)
    assert matches(expression, name) is eval(python)


def test_the_rate_rises_over_the_warm_up_and_stays():
    recipe = Recipe(learning_rate=0.8, warmup_samples=400)
    assert [recipe.rate_after(n) for n in (100, 200, 400, 401, 10**6)] == [
        pytest.approx(0.2),
        pytest.approx(0.4),
        *[0.8] * 3,
    ]
    assert Recipe(learning_rate=0.8).rate_after(1) == 0.8


@pytest.mark.parametrize(("rule", "rate"), [("kept", 0.1), ("sqrt", 0.2), ("linear", 0.4)])
def test_the_rate_is_scaled_with_the_batch(rule, rate):
    assert Recipe(learning_rate=0.1).for_batch(4, rule).learning_rate == pytest.approx(rate)


@given(
    evaluations=st.integers(2, 20),
    every=st.integers(1, 100),
    after=st.integers(1, 2000) | st.none(),
)
def test_the_target_is_set_at_an_evaluation_before_the_last(evaluations, every, after):
    try:
        race = Race(samples=evaluations * every, evaluate_every=every, target_after=after)
    except ValidationError as error:
        assert "before its last evaluation" in str(error)
        return
    assert race.baseline_samples % every == 0
    assert every <= race.baseline_samples <= race.samples - every


def test_a_race_ends_with_an_evaluation():
    with pytest.raises(ValidationError, match=r"samples \(250\) must be a multiple"):
        Race(samples=250, evaluate_every=100)


def test_a_race_needs_plain_training_to_compare_with():
    race = Race(samples=400, evaluate_every=100)
    with pytest.raises(ValidationError, match=r"give a case with Plain\(\)"):
        Suite(name="r", question="?", cases=(Case(name="ddp", strategy=Ddp()),), race=race)
    plain = Case(name="plain", strategy=Plain())
    assert Suite(name="r", question="?", cases=(plain,), race=race).baseline is plain


HERE = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py"], ("train", "train.py", False, (), HERE)),
        (
            ["src/Train_GPT.py", "-m", "x"],
            ("train-gpt", "src/Train_GPT.py", False, ("-m", "x"), HERE),
        ),
        (["python", "train.py"], ("train", "train.py", False, (), HERE)),
        (["python3", "-m", "pkg"], ("pkg", "pkg", True, (), HERE)),
        (["___.py"], ("script", "___.py", False, (), HERE)),
    ],
)
def test_how_a_script_is_called(words, expected):
    found = script_from(words, HERE)
    told = (found.name, found.program, found.module, found.arguments, found.python)
    assert told == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "Give a script"),
        (["python"], "Give a script"),
        (["-m"], "Give a script"),
        (["--lr", "1"], "--lr is an option"),
        (["torchrun", "train.py"], "torchrun starts ranks, and so does scalebench"),
    ],
)
def test_what_is_no_script(words, complaint):
    with pytest.raises(UsageError, match=complaint):
        script_from(words, HERE)


def test_placeholders_are_replaced_and_other_braces_are_not():
    script = ScriptTarget(
        name="t", program="t.py", arguments=("--b={rank_batch}", '{"a": {world_size}}', "{x}")
    )
    assert script.arguments_for({"rank_batch": 8, "world_size": 2}) == ["--b=8", '{"a": 2}', "{x}"]
    assert script.takes_batch and script.depends_on_size


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("64", 64),
        ("{global_batch}*4", 128),
        ("rank_batch * world_size // 2", 16),
        ("{global_batch}/3", 32 / 3),
    ],
)
def test_samples_per_step(expression, value):
    sizes = {"world_size": 2, "global_batch": 32, "rank_batch": 16}
    assert evaluate(expression, sizes) == pytest.approx(value)


@pytest.mark.parametrize(
    "expression", ["", "x", "0", "-1", "1/0", "print(1)", "2**99", "'a'", "1 +"]
)
def test_what_is_no_number_of_samples(expression):
    with pytest.raises(UsageError, match="is not a number of samples"):
        evaluate(expression, {"world_size": 2})
