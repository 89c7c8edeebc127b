"""Which rank a file is of where names and numbers are at their limits, and what is said of it."""

from scalebench.trace.files.file_ranks import name_ranks
from scalebench.trace.intervals import intervals
from scalebench.trace.timeline import Timeline
from tests.examples import cases


def named(*names, world_size=None):
    timelines = [(name, Timeline((), intervals([]), world_size=world_size)) for name in names]
    return [(trace.rank, trace.rank_from) for trace in name_ranks(timelines)]


@cases(
    "name, rank",
    ("rank=7.json", 7),  # whatever the trace says of the job's size
    ("Rank.0012-5.json", 12),
    ("dlrm_rank_2.json", 2),
    ("trace_r11.json", 11),
    ("8ranks_rank1.json", 1),
    ("trace_3.json", None),
    ("moe_04_top2_dense.json", None),
    ("r1t03_53384.1718.pt.trace.json", None),
    ("frank3.json", None),
    ("local_rank3.json", None),
)
def test_a_rank_in_a_name_is_one_that_is_called_so(name, rank):
    assert named(name, world_size=4) == [(0, "order") if rank is None else (rank, "file name")]


@cases(
    "names, world_size, ranks",
    ([f"h100_{n}.json" for n in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)], None, range(10, -1, -1)),
    (["trace_0.json", "trace_3.json"], 4, [0, 3]),
    (["trace_1023.json", "trace_0.json"], None, [1023, 0]),
    (["trace_1024.json", "trace_0.json"], None, None),
    (["trace_2000.json", "trace_0.json"], 4096, [2000, 0]),
    (["trace_4.json", "trace_0.json"], 4, None),
    (["a1.2.json", "a2.3.json"], None, None),  # differ in two
    (["a1.json", "b2.json"], None, None),  # and in more than numbers
    (["a1.json", "a2.3.json"], None, None),
    (["x/a1.json", "y/a1.json"], None, None),
)
def test_of_names_that_differ_in_one_number_it_is_the_rank(names, world_size, ranks):
    found = [(n, "order") for n in range(len(names))]
    if ranks is not None:
        found = [(n, "file name") for n in ranks]
    assert named(*names, world_size=world_size) == found
