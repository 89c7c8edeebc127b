"""Computation that waits for a part of its time, on a clock that only it moves."""

from types import SimpleNamespace

import pytest

from scalebench.worker.rehearsals import partly_busy
from scalebench.worker.rehearsals.partly_busy import PartlyBusy

PIECE_S = 0.0002


class Processor:
    """Of a rank with a share of it: computing takes so many times as long."""

    def __init__(self, share: float) -> None:
        self.share, self.now_s, self.used_s = share, 0.0, 0.0
        self.turns: list[str] = []

    def compute(self) -> None:
        self.used_s += PIECE_S
        self.now_s += PIECE_S / self.share
        self._note("computed")

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._note("waited")

    def thread_time(self) -> float:
        return self.used_s

    def _note(self, what: str) -> None:
        if self.turns[-1:] != [what]:
            self.turns.append(what)


def worker(
    monkeypatch: pytest.MonkeyPatch, busy: float, share: float
) -> tuple[PartlyBusy, Processor]:
    processor = Processor(share)
    clock = SimpleNamespace(sleep=processor.sleep, thread_time=processor.thread_time)
    monkeypatch.setattr(partly_busy, "time", clock)
    return PartlyBusy(processor, busy, share), processor  # type: ignore[arg-type]


def test_a_rank_uses_its_processor_time_and_waits_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, processor = worker(monkeypatch, busy=0.1, share=0.2)
    assert work.repeat(1.0) == 0.0
    assert processor.used_s == pytest.approx(0.1, abs=PIECE_S)
    assert processor.now_s == pytest.approx(1.0, abs=PIECE_S / 0.2)
    assert processor.turns == ["waited", "computed"] * 50


def test_what_a_piece_takes_too_much_is_missing_in_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, processor = worker(monkeypatch, busy=0.001, share=0.2)
    for _ in range(20):
        work.repeat(0.02)  # a tenth of a piece each
    assert processor.used_s == pytest.approx(2 * PIECE_S)


def test_a_rank_that_is_always_busy_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work, processor = worker(monkeypatch, busy=0.2, share=0.2)
    work.repeat(0.5)
    assert processor.now_s == pytest.approx(0.5, abs=PIECE_S / 0.2)
    assert work.waiting == 0.0


@pytest.mark.parametrize(("took_s", "waiting"), [(1.25, 0.25), (0.9, 0.6), (2.0, 0.0)])
def test_waiting_makes_up_for_what_the_processor_gives(
    monkeypatch: pytest.MonkeyPatch, took_s: float, waiting: float
) -> None:
    work, _ = worker(monkeypatch, busy=0.1, share=0.2)
    work.adapt(1.0, took_s)
    assert work.waiting == pytest.approx(waiting)
