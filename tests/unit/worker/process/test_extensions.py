"""Extensions that a framework compiles when it starts."""

import pytest
import torch

from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported, building_nothing
from scalebench.worker.strategies.execution import make_optimizer


@pytest.mark.parametrize(
    ("told", "flag"),
    [
        ("Unable to JIT load the deepspeed_shm_comm op due to ninja", "DS_BUILD_SHM_COMM=1"),
        ("Error building extension 'cpu_adam': ninja: build stopped", "DS_BUILD_CPU_ADAM=1"),
        ("DeepSpeedCPUAdam requires the cpu_adam op, which failed to build/load.", "_CPU_ADAM=1"),
        ("Ninja is required to load C++ extensions", "DS_BUILD_OPS=1"),
    ],
)
def test_a_build_that_fails_is_one_line_with_the_way_round_it(told, flag):
    with pytest.raises(Unsupported, match=flag) as error, building_nothing():
        raise RuntimeError(f"{told}\nmore")
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="something else"), building_nothing():
        raise RuntimeError("something else")


def test_a_workload_s_own_optimizer_may_compile_when_it_is_made():
    def cpu_adam(parameters):
        raise RuntimeError("Error building extension 'cpu_adam': ninja: build stopped\nmore")

    module = torch.nn.Linear(2, 1)
    workload = Workload(module, [], lambda module, batch: module(batch).sum(), optimizer=cpu_adam)
    with pytest.raises(Unsupported, match="DS_BUILD_CPU_ADAM=1"):
        make_optimizer(workload, module.parameters())
