"""Options of a parameter server that contradict one another, and who may be lost."""

import pytest
from pydantic import ValidationError

from scalebench.spec import Ddp, LocalSgd, ParameterServer


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backup_workers": 1}, "needs staleness_bound=0"),
        ({"backup_workers": 1, "staleness_bound": 0, "servers": 2}, "needs servers=1"),
        ({"staleness_aware": True, "staleness_bound": 0}, "no gradient is stale"),
        ({"pushes": "priority"}, "needs staleness_bound=0"),
        ({"pushes": "backward", "staleness_bound": 2}, "needs staleness_bound=0"),
        (
            {"pushes": "priority", "staleness_bound": 0, "backup_workers": 1},
            "needs staleness_bound=0 and backup_workers=0",
        ),
        ({"pushes": "priority", "staleness_bound": 0, "compile": True}, "needs compile=False"),
        ({"pushes": "backward", "staleness_bound": 0, "chunk_mb": 1}, 'needs pushes="priority"'),
        ({"chunk_mb": 1}, 'chunk_mb=1 needs pushes="priority"'),
        ({"pushes": "priority", "staleness_bound": 0, "chunk_mb": 0}, "greater than 0"),
    ],
)
def test_options_that_contradict_one_another(options, told):
    with pytest.raises(ValidationError, match=told):
        ParameterServer(**options)


def test_a_step_waits_for_somebody():
    backup = ParameterServer(staleness_bound=0, backup_workers=2)
    assert backup.why_not("cpu", 3) is None
    assert "leave none of the 2 ranks" in str(backup.why_not("cpu", 2))


@pytest.mark.parametrize(
    ("strategy", "dispensable"),
    [
        (ParameterServer(), [1, 2, 3]),
        (ParameterServer(servers=2, staleness_bound=3), [2, 3]),
        (ParameterServer(staleness_bound=0, backup_workers=1), [1, 2, 3]),
        (ParameterServer(staleness_bound=0), []),
        (LocalSgd(), []),
        (Ddp(), []),
    ],
)
def test_ranks_that_serve_nothing_may_be_lost_where_no_step_needs_all(strategy, dispensable):
    assert list(strategy.dispensable(4)) == dispensable
