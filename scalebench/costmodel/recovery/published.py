"""Published figures of long jobs, to compare with."""

from dataclasses import dataclass

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

KOKOLIS = (
    "Kokolis et al. 2024, Revisiting Reliability in Large-Scale Machine Learning Research Clusters"
)


@dataclass(frozen=True)
class PublishedJob:
    """A job or a cluster whose failures were counted.

    Attributes:
        mtbf_s: Mean time between failures of the whole job, seconds.
        goodput: Share of the time that trained, at least; None: not published.
    """

    name: str
    num_devices: int
    mtbf_s: float
    goodput: float | None
    source: str

    @property
    def device_mtbf_s(self) -> float:
        """The mean time between failures of one device that this implies, seconds."""
        return self.mtbf_s * self.num_devices


JOBS = (
    PublishedJob(
        name="Llama 3 405B",
        num_devices=16384,
        mtbf_s=54 * DAY_S / 419,
        goodput=0.9,
        source="Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.4",
    ),
    PublishedJob(
        name="jobs of 1,024 GPUs",
        num_devices=1024,
        mtbf_s=7.9 * HOUR_S,
        goodput=None,
        source=KOKOLIS,
    ),
    PublishedJob(
        name="jobs of 16,384 GPUs, extrapolated",
        num_devices=16384,
        mtbf_s=1.8 * HOUR_S,
        goodput=None,
        source=KOKOLIS,
    ),
)

DCP_7B_BLOCKED_S = {"sharded": 148.8, "async": 6.3}
"""Seconds for which DCP blocked training of a 7B model, by method (PyTorch blog, June 2024)."""
