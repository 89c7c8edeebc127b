"""Recorded runs, traces and logs give what they gave; see `tests.golden_runs`."""

import json

import pytest

from tests.examples import cases
from tests.golden_runs import KINDS, ROOT, recorded, stored

RENEW = "if this was meant, `python -m tests.golden_runs` renews them; look at `git diff`"


@pytest.mark.slow
@cases("kind, name", *recorded())
def test_recorded_results_are_analysed_as_before(kind, name, monkeypatch):
    monkeypatch.chdir(ROOT)
    digests, tables = stored(kind, name)
    before = json.loads(digests.read_text())
    found, text = KINDS[kind](name)
    changed = sorted(k for k in before.keys() | found.keys() if before.get(k) != found.get(k))
    assert not changed, RENEW
    assert text == tables.read_text(), RENEW
