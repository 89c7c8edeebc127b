from hypothesis import assume, given
from hypothesis import strategies as st

from scalebench.cli.calibrate import certificate_exit_code
from scalebench.errors import ExitCode
from scalebench.machine import identity
from scalebench.records.certificate import Certificate, Line, cannot, checked
from scalebench.report import render_page
from scalebench.report.certificate import render_certificate
from scalebench.report.tables.layout import Screen
from tests.builders.summaries import HOSTILE, make_summary
from tests.examples import cases

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


PASSING = checked(
    a_line(0.01, 0.005, 0.05, unit="s", injected=0.02, recovered=0.0202, detail="rank 1 of 2")
)
FAILING = checked(a_line(-0.2, 0.01, 0.02, unit="bit/s", injected=5e7, recovered=4e7))
NOISY = checked(a_line(0.01, 0.09, 0.05))
LEFT_OUT = cannot("pipeline bubble", "no pipelines")


@given(st.floats(min_value=-1, max_value=1), RATIO, RATIO, RATIO)
def test_what_is_decided_holds_wherever_in_the_noise_the_truth_lies(error, noise, limit, where):
    line = checked(a_line(error, noise, limit))
    truth = error + (2 * where - 1) * noise
    assume(abs(abs(truth) - limit) > 1e-9)
    if line.passed is True:
        assert abs(truth) <= limit
    elif line.passed is False:
        assert abs(truth) > limit
    else:
        assert abs(error) + noise > limit >= abs(error) - noise
        assert "noise" in line.reason


@cases(
    "lines, code",
    ((PASSING, NOISY, LEFT_OUT), ExitCode.OK),
    ((PASSING, FAILING), ExitCode.CELLS_FAILED),
    ((FAILING, NOISY), ExitCode.CELLS_FAILED),
    ((NOISY, LEFT_OUT), ExitCode.INCONCLUSIVE),
)
def test_the_exit_code(lines, code):
    made = a_certificate(*lines)
    assert certificate_exit_code(len(made.failed), made.num_passed) is code


@cases("text", *HOSTILE)
def test_a_hostile_certificate_is_text(text):
    line = a_line(0.0, 0.0, 0.1, detail=text).model_copy(update={"name": text})
    made = a_certificate(line, cannot(text, text), id=text)
    assert "<script>window" not in render_page([make_summary(certificate=made)])
    assert "\x1b" not in render_certificate(made, Screen())
