import pytest

from benchmarks.slow_axis import crosses_racks, lines, verdict


def axis(name, exposed_s, groups):
    return {"axis": name, "exposed_s": exposed_s, "groups": groups}


INSIDE, ACROSS = [[0, 1], [2, 3]], [[0, 2], [1, 3]]


def row(shard_s, tensor_s, tensor_groups):
    shard_groups = ACROSS if tensor_groups == INSIDE else INSIDE
    axes = [axis("shard", shard_s, shard_groups), axis("tensor", tensor_s, tensor_groups)]
    return {"case": "mesh", "world_size": 4, "axes": axes}


def test_an_axis_crosses_racks_where_a_group_has_ranks_of_both():
    assert crosses_racks(ACROSS)
    assert not crosses_racks(INSIDE)


def test_the_axis_found_is_the_one_that_crosses():
    told, num_wrong = lines([row(3.0, 1.0, INSIDE), row(0.5, 2.0, ACROSS)])
    assert num_wrong == 0
    assert "across the racks: shard" in told[0] and "found: shard" in told[0]
    assert "75 % of the exposed communication" in told[0]
    assert "across the racks: tensor" in told[1] and "80 %" in told[1]
    assert verdict(told, num_wrong) == 0


@pytest.mark.parametrize("seconds", [(1.0, 3.0), (1.0, 1.01)])
def test_another_axis_is_an_error(seconds):
    told, num_wrong = lines([row(*seconds, INSIDE)])
    assert num_wrong == 1
    assert verdict(told, num_wrong) == 1


def test_one_order_alone_shows_nothing():
    told, num_wrong = lines([row(3.0, 1.0, INSIDE), {**row(1.0, 2.0, ACROSS), "axes": None}])
    assert (len(told), num_wrong) == (1, 0)
    assert verdict(told, num_wrong) == 1
