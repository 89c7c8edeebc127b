"""What is kept of one trace file: the whole of it, or whole steps."""

import json

import pytest

from scalebench.errors import UsageError
from scalebench.trace import reading
from scalebench.trace.reading import read_all, read_trace


def written(path, *rows):
    """Rows of category, name, start and end in µs."""
    path.write_text(
        json.dumps(
            [
                {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "tid": 1}
                for cat, name, start, end in rows
            ]
        )
    )
    return str(path)


ROWS = (
    ("user_annotation", "ProfilerStep#1", 100, 200),
    ("cpu_op", "aten::mm", 110, 150),
    ("user_annotation", "gloo:all_reduce", 140, 260),
)


def test_the_exposed_part_of_the_whole_file_and_of_its_steps(tmp_path):
    file = written(tmp_path / "a.json", *ROWS)
    whole, steps = read_trace(file, "file"), read_trace(file, "steps")
    # time is counted from the first event, at 100 µs
    assert whole.exposed.tolist() == [[50_000, 160_000]]
    assert steps.exposed.tolist() == [[50_000, 100_000]]
    assert whole.figures.window_s == pytest.approx(160e-6)
    assert steps.figures.window_s == pytest.approx(100e-6)
    assert len(whole.timeline.compute) == len(whole.timeline.copies) == 0
    assert len(steps.timeline.operations) == 1


def test_a_file_without_steps_is_refused_by_its_name_where_steps_are_asked_for(tmp_path):
    file = written(tmp_path / "a.json", *ROWS[1:])
    with pytest.raises(UsageError, match=r"a\.json: the trace has no profiler steps"):
        read_trace(file, "steps")
    found = read_all([file], "steps")
    assert isinstance(found[file], UsageError)
    assert read_all([file], "file")[file].figures.compute_s == pytest.approx(40e-6)


@pytest.mark.parametrize(
    ("num_files", "num_processes", "cores", "pool"),
    [
        (3, 2, 8, 2),
        (2, 5, 8, 2),
        (3, None, 2, 2),
        (2, None, 2, 2),
        (3, 1, 8, None),
        (1, 5, 8, None),
        (3, None, 1, None),
    ],
)
def test_as_many_processes_as_files_or_cores(
    tmp_path, monkeypatch, num_files, num_processes, cores, pool
):
    """With a pool that only notes its size."""
    made = []

    class Pool:
        def __init__(self, most, **_):
            made.append(most)

        def map(self, function, files):
            return [function(file) for file in files]

        def shutdown(self, cancel_futures):
            made.append(cancel_futures)

    monkeypatch.setattr(reading, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(reading, "num_cores", lambda: cores)
    files = [written(tmp_path / f"{i}.json", *ROWS) for i in range(num_files)]
    assert list(read_all(files, "file", num_processes)) == files
    assert made == ([] if pool is None else [pool, True])
