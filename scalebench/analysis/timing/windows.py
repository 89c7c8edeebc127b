"""When a launch's clean steps were run, on the clock that the node was watched by."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.records.measured.rank import Block
from scalebench.records.measured.telemetry import DeviceTrack
from scalebench.records.run import CellResult

MERGED_GAP_NS = 100_000_000
"""Pauses that NVML's energy counter, which moves every 20 to 100 ms, cannot tell from work."""


@dataclass(frozen=True)
class Window:
    """A stretch of clean steps, of all ranks together.

    Attributes:
        start_ns: When the first rank began.
        end_ns: When the last rank was done.
    """

    start_ns: int
    end_ns: int
    num_steps: int

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9


def clean_windows(result: CellResult) -> list[Window]:
    """Return the clean windows of a launch in order; clean blocks in close succession are one.

    A block whose times were not noted is left out.
    """
    merged: list[Window] = []
    blocks_by_number = zip(*(rank.blocks for rank in result.ranks), strict=False)
    for window in filter(None, map(_window, blocks_by_number)):
        last = merged[-1] if merged else None
        if last and 0 <= window.start_ns - last.end_ns <= MERGED_GAP_NS:
            steps = last.num_steps + window.num_steps
            merged[-1] = Window(last.start_ns, window.end_ns, steps)
        else:
            merged.append(window)
    return merged


def _window(blocks: Sequence[Block]) -> Window | None:
    """Return the window of one block on all ranks; None: not clean, or its times are unknown."""
    starts = [block.start_ns for block in blocks if block.start_ns is not None]
    ends = [block.end_ns for block in blocks if block.end_ns is not None]
    is_clean = all(block.phase == "clean" for block in blocks)
    if not is_clean or len(starts) != len(blocks) or len(ends) != len(blocks):
        return None
    return Window(min(starts), max(ends), blocks[0].count)


def used_devices(result: CellResult) -> list[DeviceTrack] | str:
    """Return the tracks of the GPUs that the ranks trained on, or why they are not known."""
    if result.node is None:
        return "the node was not watched"
    if result.cell.device != "cuda":
        return "the ranks ran on the CPU"
    used = [rank.facts.get("device_uuid") for rank in result.ranks]
    if None in used:
        return "a rank did not say which device it used"
    tracks = {_bare(track.uuid): track for track in result.node.devices}
    wanted = dict.fromkeys(_bare(str(uuid)) for uuid in used)
    missing = [uuid for uuid in wanted if uuid not in tracks]
    if missing or not wanted:
        why = result.node.unavailable
        return next(iter(why.values()), f"device {', '.join(missing) or 'unknown'} was not sampled")
    return [tracks[uuid] for uuid in wanted]


def _bare(uuid: str) -> str:
    """Return a UUID without what NVML writes before it and torch does not."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
