"""Training without lockstep, over four real ranks: each method at the limit its paper gives."""

from statistics import median

import pytest

from tests.integration.parallel.asynchronous_ranks import (
    FAST_S,
    SLOW_RANK,
    SLOW_S,
    STALE_STEPS,
)
from tests.integration.programs import Found, reports_of

NUM_RANKS = 4
ROUNDING = 1e-5
ALL_REDUCE = 2 * (NUM_RANKS - 1) / NUM_RANKS
"""Of the bytes of the parameters: what a rank sends for an all-reduce of them."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("asynchronous")
    return reports_of("parallel.asynchronous_ranks", folder, [NUM_RANKS])[NUM_RANKS]


def test_local_sgd_with_one_step_is_synchronous_sgd(reports: Found) -> None:
    for report in reports:
        found = report["local-sgd"]
        assert found["period 1 from DDP"] < ROUNDING
        assert found["synchronous start from DDP"] < ROUNDING


def test_local_models_drift_apart_until_they_are_averaged(reports: Found) -> None:
    for report in reports:
        found = report["local-sgd"]
        assert found["apart before the exchange"] > 100 * ROUNDING
        assert found["together after it"] == 0
        assert found["apart after the synchronous start"] > 100 * ROUNDING
        assert found["together at the first period's end"] == 0


def test_a_local_model_is_judged_by_the_mean_and_goes_on_as_it_was(
    reports: Found,
) -> None:
    for report in reports:
        assert report["local-sgd"]["judged by the mean"] < ROUNDING
        assert report["local-sgd"]["own model comes back"] == 0


def test_local_sgd_counts_what_it_sends(reports: Found) -> None:
    for report in reports:
        found = report["local-sgd"]
        assert found["sent of a period of 4"] == pytest.approx([0, ALL_REDUCE])
        with_start = [3 * ALL_REDUCE, 3 * ALL_REDUCE, 4 * ALL_REDUCE]
        assert found["sent with 3 synchronous steps"] == pytest.approx(with_start)


def test_diloco_with_a_plain_outer_step_is_local_sgd(reports: Found) -> None:
    for report in reports:
        found = report["diloco"]
        assert found["as local SGD"] < ROUNDING
        assert found["together"] == 0
        assert found["sent"] == pytest.approx(2 * ALL_REDUCE)


def test_an_outer_step_goes_where_the_ranks_went_only_further(
    reports: Found,
) -> None:
    """The pseudogradient is old minus new: with the other sign the step goes back."""
    for report in reports:
        assert report["diloco"]["one outer step"] < ROUNDING


def test_gossip_comes_together_at_the_rate_of_the_ring(reports: Found) -> None:
    found = reports[0]["gossip"]
    assert found["contraction"] == pytest.approx(1 / 3)
    started = found["distance from the mean"][0]
    expected = [started / 3**exchanges for exchanges in range(5)]
    assert found["distance from the mean"] == pytest.approx(expected, rel=1e-4)
    assert found["mean is kept"] < ROUNDING


def test_gossip_trains_as_its_simulation_in_one_process(reports: Found) -> None:
    for report in reports:
        assert report["gossip"]["as simulated"] < ROUNDING
        assert report["gossip"]["sent of 3 exchanges"] == pytest.approx(3 * 2)


def test_an_elastic_exchange_follows_the_papers_equations(reports: Found) -> None:
    for report in reports:
        found = report["elastic"]
        assert found["model"] < ROUNDING
        assert found["centre"] < ROUNDING
        assert found["sum is kept"] < ROUNDING


def test_elastic_averaging_trains_as_its_simulation_in_one_process(
    reports: Found,
) -> None:
    for report in reports:
        found = report["elastic"]
        assert found["as simulated"] < ROUNDING
        assert found["judged by the centre"] < ROUNDING
        assert found["sent of 3 exchanges"] == pytest.approx(3 * ALL_REDUCE)


@pytest.mark.parametrize("tied", ["", " tied"])
@pytest.mark.parametrize("name", ["pipedream", "2bw"])
def test_a_pipeline_that_is_not_flushed_trains_by_its_papers_equation(
    reports: Found, name: str, tied: str
) -> None:
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


def test_fedavg_with_one_step_on_all_samples_is_synchronous_sgd(
    reports: Found,
) -> None:
    found = [report["fedavg"] for report in reports]
    assert sorted(client for one in found for client in one["clients"]) == list(range(8))
    samples = [count for one in found for count in one["samples"]]
    assert sum(samples) == 200 and max(samples) > 2 * min(samples), "clients weigh differently"
    for one in found:
        assert one["as one step on all"] < ROUNDING


def test_clients_are_drawn_anew_in_each_round_and_never_twice_at_once(
    reports: Found,
) -> None:
    rounds = zip(*(report["fedavg"]["of later rounds"] for report in reports), strict=True)
    drawn = [[client for of_rank in one for client in of_rank] for one in rounds]
    assert all(len(set(one)) == 8 for one in drawn)
    assert len({tuple(one) for one in drawn}) > 30


def test_a_client_starts_from_the_common_model(reports: Found) -> None:
    for report in reports:
        found = report["fedavg"]
        assert found["judged by the common model"] == 0
        assert found["second client"] == 0, "it starts where the first did"
        assert found["moved"] > 100 * ROUNDING
        assert found["together"] == 0
        assert found["sent of a round"] == pytest.approx(ALL_REDUCE)


def test_a_synchronous_parameter_server_is_synchronous_sgd(reports: Found) -> None:
    for rank, report in enumerate(reports):
        found = report["parameter-server"]
        assert max(found["from DDP"]) < ROUNDING
        for servers in (1, 3):
            facts = found[f"synchronous, {servers} servers"]
            stale = {"0": 8 * NUM_RANKS} if rank < servers else None
            assert facts.get("staleness") == stale
            assert facts["num_batches"] == 8 and facts["exchange_s"] > 0


def test_pushes_during_the_backward_pass_are_synchronous_sgd(reports: Found) -> None:
    """Two of four ranks serve: what all send is 8 gradients and 8 answers for each other rank."""
    for pushes in ("backward", "priority"):
        for report in reports:
            found = report["parameter-server"]
            assert found[f"{pushes} from DDP"] < ROUNDING
            assert found[f"{pushes}, facts"]["exchange_s"] > 0
        sent = sum(report["parameter-server"][f"{pushes}, sent"] for report in reports)
        assert sent == pytest.approx(8 * 2 * (NUM_RANKS - 1))
    facts = [reports[0]["parameter-server"][f"{name}, facts"] for name in ("backward", "priority")]
    assert [one["num_chunks"] for one in facts] == [4, 6 + 1 + 1 + 1]
    assert facts[0]["num_overtakes"] == 0


def test_stale_gradients_are_all_counted(reports: Found) -> None:
    """In the mean each other rank steps once between two steps of a rank, less at start and end."""
    found = reports[0]["parameter-server"]
    longest = {"asynchronous": NUM_RANKS * STALE_STEPS, "bounded": (2 * 1 + 1) * (NUM_RANKS - 1)}
    for name, most in longest.items():
        counts = {int(steps): count for steps, count in found[name]["staleness"].items()}
        assert sum(counts.values()) == NUM_RANKS * STALE_STEPS
        mean = sum(steps * count for steps, count in counts.items()) / sum(counts.values())
        assert mean <= NUM_RANKS - 1
        assert max(counts) <= most


def test_all_ranks_are_judged_by_the_servers_parameters(reports: Found) -> None:
    for report in reports:
        for name in ("asynchronous", "bounded"):
            assert report["parameter-server"][f"{name}, judged"] == 0


def test_a_server_answers_every_gradient_that_is_pushed(reports: Found) -> None:
    """Asynchronous ranks share the batches as it comes; with a bound each has one in a step."""
    for name in ("asynchronous", "bounded"):
        server, *others = [report["parameter-server"][f"{name}, sent"] for report in reports]
        assert sum(others) == pytest.approx(server)
    assert others == pytest.approx([STALE_STEPS] * (NUM_RANKS - 1), rel=0.02)


def test_servers_train_with_an_optimizer_that_needs_whole_layers(
    reports: Found,
) -> None:
    for report in reports:
        found = report["whole-layers"]
        assert set(found) == {"1 server", "3 servers", "by priority"}
        assert max(found.values()) < ROUNDING, found


def test_a_slow_rank_holds_up_a_synchronous_server_as_the_model_says(
    reports: Found,
) -> None:
    """In lockstep N / max t batches a second, without Σ 1/t. Medians, so that no delay counts."""
    fast_s, slow_s = [FAST_S] * (NUM_RANKS - 1), [SLOW_S]
    model = SLOW_S * sum(1 / s for s in fast_s + slow_s) / NUM_RANKS
    assert model == pytest.approx(3.25)
    found = [report["slow-rank"] for report in reports]
    lockstep = NUM_RANKS / max(median(rank["synchronous"]) for rank in found)
    alone = sum(1 / median(rank["asynchronous"]) for rank in found)
    assert model / 1.8 < alone / lockstep < 1.3 * model
    batches = [len(rank["asynchronous"]) for rank in found]
    assert sum(batches) == NUM_RANKS * STALE_STEPS
    others = [number for rank, number in enumerate(batches) if rank != SLOW_RANK]
    assert batches[SLOW_RANK] < 0.6 * min(others), batches
    assert {len(rank["synchronous"]) for rank in found} == {STALE_STEPS}
