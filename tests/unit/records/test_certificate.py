"""The verdicts of a certificate, how it is shown, and which runs it belongs to."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.cli.calibrate import certificate_exit_code
from scalebench.errors import ExitCode
from scalebench.machine import identity
from scalebench.records.certificate import Certificate, Line, cannot, judged
from scalebench.report import render_page, render_table
from scalebench.report.certificate import render_certificate, verdict
from scalebench.session.selftest import results
from tests.builders.summaries import HOSTILE, make_summary

RATIO = st.floats(min_value=0, max_value=1)
HERE = {"host": "here", "torch": "2.13", "cores": 2, "devices": [{"name": "H200"}]}


def a_line(error, noise, limit, **more):
    return Line(name="x", error_ratio=error, noise_ratio=noise, limit=limit, **more)


def a_certificate(*lines, **changes):
    fields = {
        "id": "20260101T000000Z_quick_abc",
        "created": "2026-01-01T00:00:00+00:00",
        "version": "0",
        "form": "quick",
        "seed": 7,
        "seconds": 40.0,
        "machine": identity(HERE),
        "lines": lines,
    }
    return Certificate(**fields | changes)


PASSING = judged(
    a_line(0.01, 0.005, 0.05, unit="s", injected=0.02, recovered=0.0202, detail="rank 1 of 2")
)
FAILING = judged(a_line(-0.2, 0.01, 0.02, unit="bit/s", injected=5e7, recovered=4e7))
NOISY = judged(a_line(0.01, 0.09, 0.05))
LEFT_OUT = cannot("pipeline bubble", "no pipelines")


@given(st.floats(min_value=-1, max_value=1), RATIO, RATIO, RATIO)
def test_what_is_decided_holds_wherever_in_the_noise_the_truth_lies(error, noise, limit, where):
    line = judged(a_line(error, noise, limit))
    truth = error + (2 * where - 1) * noise
    assume(abs(abs(truth) - limit) > 1e-9)
    if line.passed is True:
        assert abs(truth) <= limit
    elif line.passed is False:
        assert abs(truth) > limit
    else:
        assert abs(error) + noise > limit >= abs(error) - noise
        assert "noise" in line.reason


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((PASSING, NOISY, LEFT_OUT), ExitCode.OK),
        ((PASSING, FAILING), ExitCode.CELLS_FAILED),
        ((FAILING, NOISY), ExitCode.CELLS_FAILED),
        ((NOISY, LEFT_OUT), ExitCode.INCONCLUSIVE),
    ],
)
def test_the_exit_code(lines, code):
    made = a_certificate(*lines)
    assert certificate_exit_code(len(made.failed), made.num_passed) is code


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_table_shows_every_line_and_fits(width, ascii_only):
    text = render_certificate(
        a_certificate(PASSING, FAILING, NOISY, LEFT_OUT), width, ascii_only=ascii_only
    )
    assert max(map(len, text.splitlines())) <= width
    assert not ascii_only or text.isascii()
    flat = " ".join(text.split())
    assert "1 of 4 lines pass; failed: x; 1 undecided because of noise; 1 not tried." in flat
    assert "not tried: no pipelines" in flat
    if width >= 100:
        assert "50.0 Mbit/s" in flat
        assert ("-20.00 %" if ascii_only else "−20.00 %") in flat
        assert {verdict(ln) for ln in (PASSING, FAILING, NOISY)} == {"pass", "FAIL", "undecided"}


def test_a_run_names_its_certificate_in_table_and_page():
    summary = make_summary(certificate=a_certificate(PASSING, NOISY))
    told = "20260101T000000Z_quick_abc: 1 of 2 lines pass"
    assert told in render_table(summary, verbose=True) and told not in render_table(summary)
    failed = make_summary(certificate=a_certificate(PASSING, FAILING))
    assert "1 of 2 lines pass; failed: " in render_table(failed)
    page = render_page([summary])
    assert "Certificate of the instrument" in page
    assert "rank 1 of 2" in page
    assert "Certificate of the instrument" not in render_page([make_summary()])


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_certificate_is_text(text):
    line = a_line(0.0, 0.0, 0.1, detail=text).model_copy(update={"name": text})
    made = a_certificate(line, cannot(text, text), id=text)
    assert "<script>window" not in render_page([make_summary(certificate=made)])
    assert "\x1b" not in render_certificate(made)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "scalebench" / "certificates"


def test_the_newest_of_this_machine_is_found_again(cache):
    assert results.newest(HERE) is None
    old = a_certificate(PASSING)
    new = a_certificate(PASSING, id="20260102T000000Z_quick_abc")
    elsewhere = a_certificate(
        PASSING, id="20260103T000000Z_quick_abc", machine=identity({**HERE, "host": "there"})
    )
    for one in (new, old, elsewhere):
        results.keep(one)
    assert results.newest(HERE) == new
    assert results.newest({**HERE, "torch": "2.14"}) is None
