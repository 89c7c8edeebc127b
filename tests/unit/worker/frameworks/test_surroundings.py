"""What surrounds a framework in a rank."""

import pytest

from scalebench.spec import DeepSpeed
from scalebench.worker.frameworks.surroundings import building_nothing, framework_facts
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import seen_before_update


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


def test_a_version_that_is_not_tested_is_marked(monkeypatch):
    known = "scalebench.worker.frameworks.surroundings.version"
    for found, untested in (("0.19.8", []), ("99.0", ["deepspeed"])):
        monkeypatch.setattr(known, lambda _, found=found: found)
        given = {"gradient_clipping": 0.0, "steps_per_print": float("inf")}
        facts = framework_facts(DeepSpeed(), given)["framework"]
        assert facts["untested"] == untested
        assert facts["versions"] == {"deepspeed": found}
        assert facts["tested"] == {"deepspeed": "0.19.8"}
        assert facts["settings"] == {"gradient_clipping": 0.0, "steps_per_print": "inf"}


class FreesInUpdate:
    before_update = None

    def step(self):
        self.gradient = 3.0
        if self.before_update is not None:
            self.before_update()
        self.gradient = None


def test_gradients_that_the_update_frees_are_seen_before_it():
    training = FreesInUpdate()
    with seen_before_update(training, lambda: training.gradient) as seen:
        training.step()
    assert seen == [3.0]
    training.step()
    assert seen == [3.0]  # in the step of the block only
    with seen_before_update(object(), lambda: 1.0) as seen:
        pass
    assert seen == []
