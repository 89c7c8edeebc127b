"""Tensors of unit tests are small: one thread for each of them.

Where several workers of pytest share the cores, threads that wait for one another take thirty
times as long as one.
"""

import pytest
import torch
import torch.distributed as dist

torch.set_num_threads(1)


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
