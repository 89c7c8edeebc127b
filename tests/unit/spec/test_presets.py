import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.spec.presets import PRESETS, resolve_workload


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
