"""Training without lockstep, over four real ranks: each method at the limit its paper gives."""

from math import inf
from statistics import median

import pytest

from tests.examples import cases
from tests.integration.parallel.asynchronous_ranks import FAST_S, SLOW_RANK, SLOW_S, STALE_STEPS
from tests.integration.programs import reports_of

NUM_RANKS = 4
SYNCHRONOUS = ("1 servers", "3 servers", "backward", "priority")
ROUNDING = 1e-5
ALL_REDUCE = 2 * (NUM_RANKS - 1) / NUM_RANKS
"""Of the bytes of the parameters: what a rank sends for an all-reduce of them."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous")
    return reports_of("parallel.asynchronous_ranks", folder, [NUM_RANKS])[NUM_RANKS]


SIMULATED = {
    "local_sgd": ("judged by the mean",),
    "diloco": ("as simulated",),
    "gossip": ("as simulated",),
    "elastic": ("as simulated", "judged by the centre"),
    "fedavg": ("as one step on all",),
    "parameter_server": [f"{way} from DDP" for way in SYNCHRONOUS],
    "whole_layers": ("1 together", "3 together", "2 priority"),
}
"""At a limit a method is synchronous SGD; elsewhere what one process simulates."""
THE_VERY_SAME = {
    "local_sgd": ("own model comes back",),
    "diloco": ("together",),
    "fedavg": ("judged by the common model", "second client", "together"),
    "parameter_server": ("asynchronous, judged", "bounded, judged"),
}
APART = {"fedavg": ("moved",)}
BOUNDS = [(SIMULATED, 0, ROUNDING), (THE_VERY_SAME, 0, 0), (APART, 100 * ROUNDING, inf)]
SENT = {
    "diloco": {"sent": 2 * ALL_REDUCE},
    "gossip": {"sent of 3 exchanges": 3 * 2},
    "elastic": {"sent of 3 exchanges": 3 * ALL_REDUCE},
    "fedavg": {"sent of a round": ALL_REDUCE},
}


def of(told):
    return [(method, figure) for method, figures in told.items() for figure in figures]


@cases(
    "method, figure, low, high",
    *[(*one, low, high) for told, low, high in BOUNDS for one in of(told)],
)
def test_a_method_does_what_its_paper_says(reports, method, figure, low, high):
    for report in reports:
        assert low <= report[method][figure] <= high


@cases("method, figure", *of(SENT))
def test_a_method_counts_what_it_sends(reports, method, figure):
    for report in reports:
        assert report[method][figure] == pytest.approx(SENT[method][figure])


def test_models_of_local_sgd_drift_apart_until_they_are_averaged(reports):
    for report in reports:
        found = report["local_sgd"]
        assert max(found["as simulated"]) < ROUNDING
        assert found["sent"] == pytest.approx([ALL_REDUCE * n for n in (6, 0, 1, 3, 3, 4)])
        together = [distance == 0 for distance in found["apart"]]
        assert together == [True, False, True, True, False, True]
        assert min(distance for distance in found["apart"] if distance) > 100 * ROUNDING


def test_gossip_tells_the_rate_of_the_ring(reports):
    assert reports[0]["gossip"]["contraction"] == pytest.approx(1 / 3)


@cases("tied", "", " tied")
@cases("name", "pipedream", "2bw")
def test_a_pipeline_that_is_not_flushed_trains_by_its_papers_equation(reports, name, tied):
    """Each stage has the weights, versions and staleness of the law; so has a shared matrix."""
    batches, activations, matrix = 12, 4 * 4 * NUM_RANKS * 6, 4 * 6 * 6
    for stage, report in enumerate(reports):
        found, ahead = report["pipedream"][name + tied], NUM_RANKS - 1 - stage
        assert found["as simulated"] < ROUNDING < found["from the newest"] / 100
        law = ahead if name == "pipedream" else 1
        done = batches - ahead if name == "pipedream" else batches - (ahead > 0)
        begun = {str(steps): 1 for steps in range(law)}
        assert found["staleness"] == begun | {str(law): done - law}
        versions = ahead + 1 if name == "pipedream" else 2
        assert found["weight_versions"] == versions and found["stage_bytes"] == matrix
        assert found["stash_bytes"] == (versions - 1) * matrix
        assert found["kept bytes"] == versions * matrix
        back = batches - ahead if name == "pipedream" else batches - ahead / 4
        summed = done * matrix if tied and stage in (0, 3) else 0
        sent = (stage < 3) * batches * activations + (stage > 0) * back * activations + summed
        assert found["sent"] == sent
        assert (found["held out"] is None) == (stage < 3)
    assert reports[3]["pipedream"][name + tied]["held out"] == pytest.approx(1, rel=1e-5)


def test_clients_weigh_differently(reports):
    found = [report["fedavg"] for report in reports]
    assert sorted(client for one in found for client in one["clients"]) == list(range(8))
    samples = [count for one in found for count in one["samples"]]
    assert sum(samples) == 200 and max(samples) > 2 * min(samples)


def test_each_round_draws_other_clients_and_none_twice(reports):
    rounds = zip(*(report["fedavg"]["of later rounds"] for report in reports), strict=True)
    drawn = [[client for of_rank in one for client in of_rank] for one in rounds]
    assert all(len(set(one)) == 8 for one in drawn)
    assert len({tuple(one) for one in drawn}) > 30


def test_the_servers_of_a_synchronous_parameter_server_see_no_stale_gradient(reports):
    for rank, report in enumerate(reports):
        for servers in (1, 3):
            facts = report["parameter_server"][f"{servers} servers"]
            stale = {"0": 8 * NUM_RANKS} if rank < servers else None
            assert facts.get("staleness") == stale and facts["num_batches"] == 8


def test_pushes_during_the_backward_pass_are_counted(reports):
    """Two of four ranks serve: what all send is 8 gradients and 8 answers for each other rank."""
    found = [report["parameter_server"] for report in reports]
    for way in SYNCHRONOUS:
        assert all(one[way]["exchange_s"] > 0 for one in found)
    for pushes in ("backward", "priority"):
        sent = sum(one[f"{pushes}, sent"] for one in found)
        assert sent == pytest.approx(8 * 2 * (NUM_RANKS - 1))
    facts = [found[0][name] for name in ("backward", "priority")]
    assert [one["num_chunks"] for one in facts] == [4, 6 + 1 + 1 + 1]
    assert facts[0]["num_overtakes"] == 0


def test_stale_gradients_are_all_counted(reports):
    """In the mean each other rank steps once between two steps of a rank, less at start and end."""
    found = reports[0]["parameter_server"]
    longest = {"asynchronous": NUM_RANKS * STALE_STEPS, "bounded": (2 * 1 + 1) * (NUM_RANKS - 1)}
    for name, most in longest.items():
        counts = {int(steps): count for steps, count in found[name]["staleness"].items()}
        assert sum(counts.values()) == NUM_RANKS * STALE_STEPS
        mean = sum(steps * count for steps, count in counts.items()) / sum(counts.values())
        assert mean <= NUM_RANKS - 1
        assert max(counts) <= most


def test_a_server_answers_every_gradient_that_is_pushed(reports):
    """Asynchronous ranks share the batches as it comes; with a bound each has one in a step."""
    for name in ("asynchronous", "bounded"):
        server, *others = [report["parameter_server"][f"{name}, sent"] for report in reports]
        assert sum(others) == pytest.approx(server)
    assert others == pytest.approx([STALE_STEPS] * (NUM_RANKS - 1), rel=0.02)


def test_a_slow_rank_holds_up_a_synchronous_server_as_the_model_says(reports):
    """In lockstep N / max t batches a second, without Σ 1/t. Medians, so that no delay counts."""
    fast_s, slow_s = [FAST_S] * (NUM_RANKS - 1), [SLOW_S]
    model = SLOW_S * sum(1 / s for s in fast_s + slow_s) / NUM_RANKS
    assert model == pytest.approx(3.25)
    found = [report["slow_rank"] for report in reports]
    lockstep = NUM_RANKS / max(median(rank["synchronous"]) for rank in found)
    alone = sum(1 / median(rank["asynchronous"]) for rank in found)
    assert model / 1.8 < alone / lockstep < 1.3 * model
    batches = [len(rank["asynchronous"]) for rank in found]
    assert sum(batches) == NUM_RANKS * STALE_STEPS
    others = [number for rank, number in enumerate(batches) if rank != SLOW_RANK]
    assert batches[SLOW_RANK] < 0.6 * min(others), batches
    assert {len(rank["synchronous"]) for rank in found} == {STALE_STEPS}
