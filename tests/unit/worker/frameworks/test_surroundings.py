"""What surrounds a framework in a rank."""

from scalebench.spec import DeepSpeed
from scalebench.worker.frameworks.surroundings import framework_facts
from scalebench.worker.strategies.base import Training, seen_before_update


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


class FreesInUpdate(Training):
    frees_gradients = True

    def __init__(self):
        self.gradient = None

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
    training.frees_gradients = False
    with seen_before_update(training, lambda: 1.0) as seen:
        pass
    assert seen == []
