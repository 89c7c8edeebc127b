"""The JSON file: what of it is used, its limits, and what is said where it cannot be."""

import json

import pytest

from scalebench.costmodel.links.nccl_tests import json_file
from scalebench.costmodel.links.nccl_tests.json_file import read_json
from scalebench.costmodel.links.nccl_tests.run import Rank
from scalebench.errors import UsageError


def mode(time=2.5, **changes):
    return {"time": time, "alg_bw": 0.25, "bus_bw": 0.5, "nwrong": 3.0} | changes


def result(**changes):
    given = {"size": 640, "count": 320, "type": "half", "redop": "max", "root": "     2"}
    return given | {"out_of_place": mode(), "in_place": mode(7.125, nwrong=None)} | changes


def content(*results, **changes):
    given = {
        "args": ["./build/all_reduce_perf", "-b"],
        "config": {"nthreads": 3, "ngpus": 2, "devices": [{"rank": 0, "group": 4}]},
        "results": list(results or (result(),)),
        "average_bus_bandwidth": {"bandwidth": 0.75},
        "out_of_bounds": {"count": 6},
    }
    return given | changes


@pytest.fixture
def read(tmp_path):
    def read(value):
        path = tmp_path / "x.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return read_json(path)

    return read


def test_a_file_is_a_run(read, tmp_path):
    run = read(content(result(), result(size=8, root=-1, redop="none", in_place=None)))
    assert (run.path, run.program) == (tmp_path / "x.json", "./build/all_reduce_perf")
    assert (run.ranks_per_process, run.num_out_of_bounds) == (6, 6)
    assert (run.average_busbw_gb_per_s, run.has_footer) == (0.75, True)
    assert run.ranks == [Rank(i, 4) for i in range(6)]
    first, second, third = run.points
    assert (first.size_bytes, first.count, first.dtype, first.itemsize) == (640, 320, "float16", 2)
    assert (first.redop, first.root, first.num_wrong, first.in_place) == ("max", 2, 3, False)
    assert first.time_us == pytest.approx((2.5, 2.4999995, 2.5000005), rel=1e-12)
    assert (first.algbw_gb_per_s.value, first.busbw_gb_per_s.value) == (0.25, 0.5)
    assert (second.time_us.value, second.num_wrong, second.in_place) == (7.125, None, True)
    assert (third.size_bytes, third.redop, third.root, third.in_place) == (8, None, None, False)
    assert [p.place for p in run.points] == ["results[0]", "results[0]", "results[1]"]


def test_what_is_not_needed_may_be_missing_or_wrong(read):
    bare = read({"results": [result()]})
    assert (bare.program, bare.ranks_per_process, bare.ranks) == ("", None, [])
    assert (bare.average_busbw_gb_per_s, bare.has_footer, bare.num_out_of_bounds) == (
        *(None, False, None),
    )
    odd = content(args=[7], config={"nthreads": 0, "ngpus": 2000}, out_of_bounds={"count": "x"})
    assert read(odd).ranks_per_process is None
    assert (read(odd).program, read(odd).num_out_of_bounds) == ("", None)


@pytest.mark.parametrize(
    ("threads", "gpus", "each"),
    [(1, 1, 1), (1024, 1024, 2**20), (1025, 1, None), (1, 1025, None), (0, 1, None), (1, 0, None)],
)
def test_ranks_of_a_process_are_threads_times_devices(read, threads, gpus, each):
    found = read(content(config={"nthreads": threads, "ngpus": gpus}))
    assert found.ranks_per_process == each


@pytest.mark.parametrize(
    ("threads", "gpus", "devices", "ranks"),
    [
        (1, 2, [(0, 0), (2, 0)], [(0, 0), (1, 0), (2, 0), (3, 0)]),
        (3, 1, [(3, 5), (0, 4)], [(3, 5), (4, 5), (5, 5), (0, 4), (1, 4), (2, 4)]),
        (1, 2, [(0, 0), (1, 7), (2, 0)], [(0, 0), (1, 7), (2, 0)]),
        (None, 2, [(0, None), (2, 1)], [(0, 0), (1, 0), (2, 1), (3, 1)]),
        (2, None, [(0, 0)], [(0, 0), (1, 0)]),
        (None, None, [(0, 0), (1, 0)], [(0, 0), (1, 0)]),
    ],
)
def test_the_first_rank_of_a_process_stands_for_all_unless_all_are_listed(
    read, threads, gpus, devices, ranks
):
    listed = [{"rank": rank} | ({} if g is None else {"group": g}) for rank, g in devices]
    config = {"devices": listed} | ({"nthreads": threads} if threads else {})
    found = read(content(config=config | ({"ngpus": gpus} if gpus else {})))
    assert found.ranks == [Rank(*rank) for rank in ranks]


def test_a_rank_below_zero_is_no_list(read):
    assert read(content(config={"devices": [{"rank": -1, "group": 0}]})).ranks == []


def test_a_mode_without_a_time_of_the_operation_has_the_calls(read):
    of_call = mode(cpu_time=0.5)
    del of_call["time"]
    (first, _) = read(content(result(out_of_place=of_call))).points
    assert first.time_us is None


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"type": "float7"}, "results[0]", "the type 'float7' is not known"),
        ({"in_place": None, "out_of_place": None}, "results[0]", "a measurement or its time"),
        ({"in_place": mode(None)}, "results[0]", "a measurement or its time is missing"),
        ({"in_place": mode(None), "out_of_place": None}, "results[0]", "a measurement or its time"),
        ({"size": -1}, "results[0].size", "greater than or equal to 0"),
        ({"size": 2**63}, "results[0].size", "less than"),
        ({"count": -1}, "results[0].count", "greater than or equal to 0"),
        ({"in_place": mode(1e18)}, "results[0].in_place.time", "less than"),
        ({"in_place": mode(-1e18)}, "results[0].in_place.time", "greater than"),
        ({"size": "640"}, "results[0].size", "valid integer"),
        ({"size": -1, "count": -1}, "results[0].size", "greater than or equal to 0"),
    ],
)
def test_a_result_that_cannot_be_is_told_with_its_place(read, changes, where, words):
    with pytest.raises(UsageError) as caught:
        read(content(result(**changes)))
    assert f"x.json, {where}: " in str(caught.value)
    assert words in str(caught.value)


def test_the_place_of_a_second_result_is_its_own(read):
    with pytest.raises(UsageError, match=r"results\[1\].in_place.alg_bw: "):
        read(content(result(), result(in_place=mode(alg_bw="x"))))


@pytest.mark.parametrize("changes", [{"size": 0, "count": 0}, {"size": 2**63 - 1}])
def test_the_least_and_the_most_of_a_size(read, changes):
    assert read(content(result(**changes))).points[0].size_bytes == changes["size"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "is JSON, but not a result of nccl-tests"),
        ({"results": []}, "is JSON, but not a result of nccl-tests"),
        ([1], "is JSON, but not a result of nccl-tests"),
        ('{"results": [', "the JSON is cut off or damaged (EOF"),
    ],
)
def test_what_is_no_file_of_results(read, value, words):
    with pytest.raises(UsageError) as caught:
        read(value)
    assert words in str(caught.value)


def test_a_file_as_large_as_is_allowed_is_read(read, monkeypatch):
    text = json.dumps(content())
    monkeypatch.setattr(json_file, "MAX_BYTES", len(text))
    assert len(read(text).points) == 2
    with pytest.raises(UsageError, match="is larger than 0 MiB"):
        read(text + " ")


def test_the_largest_file_is_64_mebibytes():
    assert json_file.MAX_BYTES == 67_108_864
