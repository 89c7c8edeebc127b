import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.spec.selection import matches


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
