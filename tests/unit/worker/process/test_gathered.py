"""What ranks tell one another over gloo comes whole, and as JSON and tensors."""

import ast
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import scalebench
from scalebench.worker.inspection.reference import gather_batches

T = TypeVar("T")


def on_ranks(work: Callable[[int, Any], T], world_size: int = 3) -> list[T]:
    """Do something on ranks that are threads, each with a group over gloo."""
    store = dist.HashStore()

    def rank(number: int) -> T:
        limit = timedelta(seconds=60)
        return work(number, dist.ProcessGroupGloo(store, number, world_size, limit))  # type: ignore[attr-defined]

    with ThreadPoolExecutor(world_size) as ranks:
        return list(ranks.map(rank, range(world_size)))


def test_batches_of_any_kind_come_to_rank_0() -> None:
    def batches(rank: int) -> list[Any]:
        tensors = (torch.full((2, 3), rank, dtype=torch.bfloat16), torch.arange(rank, rank + 2))
        return [{"x": tensors, "name": f"of {rank}", "none": None}, (torch.zeros(0), 0.5 + rank)]

    first, *others = on_ranks(lambda rank, group: gather_batches(batches(rank), group))
    assert others == [None, None] and first is not None
    for rank, found in enumerate(first):
        wanted = batches(rank)
        assert found[0]["name"] == f"of {rank}" and found[0]["none"] is None
        assert found[1][1] == 0.5 + rank and found[1][0].shape == (0,)
        for a, b in zip(found[0]["x"], wanted[0]["x"], strict=True):
            assert a.dtype == b.dtype and torch.equal(a, b)


def test_no_rank_unpickles_what_another_has_sent() -> None:
    """The collectives of objects in torch do."""
    for path in Path(scalebench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                objects = node.value.id == "dist" and "_object" in node.attr
                assert not objects and called not in ("pickle.load", "pickle.loads"), path
