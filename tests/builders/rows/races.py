"""Races made by hand: how long a case takes to a loss, and by how many samples."""

from scalebench.records.rows.race import RaceFigures
from scalebench.stats import Estimate


def near(value, spread=0.02):
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=3)


def figures(time_s, samples, **changes):
    """A race that the baseline ends after 8 s and 2048 samples."""
    fields = {
        "target_loss": 2.476,
        "target_from": "plain after 2048 samples",
        "baseline": ("plain", 1),
        "samples": 4096,
        "num_seeds": 3,
        "num_reached": 3,
        "time_to_target_s": near(time_s),
        "samples_to_target": near(samples),
        "statistical_efficiency": near(2048 / samples),
        "hardware_efficiency": near(8 * samples / 2048 / time_s / 2),
        "speedup_to_target": near(8 / time_s),
        "final_loss": near(2.1),
        "equal_time_s": 6.0,
        "loss_at_equal_time": near(2.3),
        "noise_scale": near(40),
        "predicted_statistical_efficiency": 0.8,
    }
    return RaceFigures(**{**fields, **changes})
