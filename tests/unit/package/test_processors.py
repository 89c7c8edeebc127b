import json
from pathlib import Path

import pytest

from scalebench import resources
from tests.examples import cases

RECORDED = json.loads(
    (Path(__file__).parents[2] / "recorded" / "cpu_topologies.json").read_text(encoding="utf-8")
)


class Machine:
    """A recorded machine, as files of the kernel below ``root``."""

    def __init__(self, name, root):
        told = RECORDED[name]
        self.system, self.pci = root / "system", root / "pci"
        for node, numbers in enumerate(told["nodes"]):
            _write(self.system / "node" / f"node{node}" / "cpulist", numbers)
        everyone = sorted(n for numbers in told["nodes"] for n in resources.parse_list(numbers))
        apart = told["sibling_distance"]
        for package, numbers in enumerate(told["packages"]):
            for number in resources.parse_list(numbers):
                first = number - number % 2 if apart == 1 else number % apart
                topology = self.system / "cpu" / f"cpu{number}" / "topology"
                siblings = f"{first}-{first + 1}" if apart == 1 else f"{first},{first + apart}"
                _write(topology / "thread_siblings_list", siblings)
                _write(topology / "physical_package_id", str(package))
        for bus_id, node in told["gpus"].items():
            _write(self.pci / bus_id / "numa_node", str(node))
        self.processors = resources.read_processors(everyone, self.system)
        self.gpu_nodes = [resources.gpu_node(bus_id, self.pci) for bus_id in told["gpus"]]

    def taken(self, threads, gpu_nodes, of=None):
        allowed = [p for p in self.processors if of is None or p.number in set(of)]
        return [
            [
                p.number
                for p in resources.processors_of_rank(allowed, threads, gpu_nodes[: rank + 1])
            ]
            for rank in range(len(gpu_nodes))
        ]


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def machine(tmp_path):
    return lambda name: Machine(name, tmp_path / name)


def test_a_rank_sits_beside_its_gpu(machine):
    dgx = machine("dgx-h100")
    assert dgx.gpu_nodes == [0, 0, 0, 0, 1, 1, 1, 1]
    taken = dgx.taken(14, dgx.gpu_nodes)
    assert taken[0] == list(range(14))
    assert taken[4] == list(range(56, 70))
    assert sorted(n for mine in taken for n in mine) == list(range(112))  # no sibling, none twice
    # The first visible GPU is the machine's sixth: the rank goes to the other socket.
    assert dgx.taken(4, dgx.gpu_nodes[5:6]) == [[56, 57, 58, 59]]


def test_only_what_is_allowed_is_taken(machine):
    vm = machine("vm-with-siblings")
    assert vm.taken(1, [None, None], of=[1, 3]) == [[1], [3]]  # siblings of cores not allowed
    assert resources.count_cores([p for p in vm.processors if p.number in (0, 1)]) == 1


@cases("text, numbers", ("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("all", []), ("1,", []))
def test_the_kernels_lists(text, numbers):
    assert resources.parse_list(text) == numbers
