"""Races made by hand: how long a case takes to a loss, and by how many samples."""

from scalebench.records.rows.race import RaceFigures
from tests.builders.summaries import estimate


def figures(time_s, samples, **changes):
    """A race that the baseline ends after 8 s and 2048 samples."""
    measured = {
        "time_to_target_s": time_s,
        "samples_to_target": samples,
        "statistical_efficiency": 2048 / samples,
        "hardware_efficiency": 8 * samples / 2048 / time_s / 2,
        "speedup_to_target": 8 / time_s,
    }
    measured |= {"final_loss": 2.1, "loss_at_equal_time": 2.3, "noise_scale": 40}
    fields = {name: estimate(value, 0.02) for name, value in measured.items()}
    fields |= {"target_loss": 2.476, "target_from": "plain after 2048 samples", "samples": 4096}
    fields |= {"baseline": ("plain", 1), "num_seeds": 3, "num_reached": 3, "equal_time_s": 6.0}
    fields |= {"predicted_statistical_efficiency": 0.8}
    return RaceFigures(**{**fields, **changes})
