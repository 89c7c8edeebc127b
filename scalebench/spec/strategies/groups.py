"""Groups of ranks that divide samples, matrices or experts among them."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from scalebench.spec.base import Device
from scalebench.spec.strategies.execution import Execution, why_not_groups
from scalebench.spec.workload import ContextPlan, Divisible, TensorPlan


class InGroups(Execution):
    """Ranks in groups of one size, which divide something by a plan of the workload.

    Attributes:
        size: Ranks of a group, where there are so many; None: all.
        plan_field: The workload's field that says how it is divided, and what else to choose.
    """

    works_alone = True
    plan_field: ClassVar[tuple[str, str]] = ("", "")

    kind: str
    size: int | None = Field(None, ge=1)

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks of a group at a size."""
        return world_size if self.size is None else min(self.size, world_size)

    def num_shards(self, world_size: int) -> int:
        """Return the number of groups: the ranks of one share a batch."""
        return world_size // self.ranks_per_group(world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        groups = why_not_groups(world_size, self.ranks_per_group(world_size))
        return groups or self.why_not_itself(device)

    def why_not_itself(self, device: Device) -> str | None:
        """Say why no ranks on a device can run this, however many; None: some can."""
        return None

    def why_not_divided(self, workload: Divisible, world_size: int) -> str | None:
        """Say why N ranks cannot divide a workload by its plan; None: they can."""
        if not workload.known:
            return None
        field, advice = self.plan_field
        plan = getattr(workload, field)
        if plan is None:
            return f"{workload.name} has no {field}, {advice}, or give your own workload one"
        reason = self.why_not_plan(plan, self.ranks_per_group(world_size))
        return reason and f"{workload.name}: {reason}"

    def why_not_plan(self, plan: Any, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide a workload by its plan; None: it can."""
        raise NotImplementedError


class Tensor(InGroups):
    """``torch.distributed.tensor.parallel``: the matrices of every layer are divided.

    The ranks of a group share a batch. With fewer than all ranks in a group, the groups have
    separate parts of the global batch, and average their gradients. Sources: Shoeybi et al. 2019
    (Megatron-LM); Korthikanti et al. 2022 (the sequence).

    Attributes:
        size: Ranks among which a layer is divided, where there are so many; None: all.
        sequence: Divide the sequence where every token is worked on by itself (normalisation,
            residual stream): reduce-scatter and all-gather in place of all-reduce.
        loss: Keep the logits divided, and divide the loss (``loss_parallel``); False: gather them.
    """

    kind: Literal["tensor"] = "tensor"
    about = "tensor parallel: the matrices of every layer divided, one batch for all"
    can_be_saved = True
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    always_communicates = "every layer needs the results of the other ranks"
    no_race = "no rank of a tensor group has the whole model, which a race evaluates"
    plan_field = ("tensor_plan", "which says how its layers are divided; choose gpt or mlp")
    sequence: bool = False
    loss: bool = False

    def why_not_itself(self, device: Device) -> str | None:
        """Say what torch gets wrong; None: nothing."""
        if self.compile and self.sequence:
            return (
                "compiled blocks with a divided sequence get wrong gradients of their norms in "
                "torch 2.13; give --no-compile"
            )
        return None

    def why_not_plan(self, plan: TensorPlan, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide a workload by its plan; None: it can."""
        if self.loss and not plan.divides_logits:
            return "loss=True needs logits divided by vocabulary, and the workload divides none"
        if self.sequence and plan.sequence is None:
            return "sequence=True needs a sequence to divide, and the workload has none"
        numbers = dict(plan.divisors)
        if self.sequence and plan.sequence is not None:
            numbers["tokens"] = plan.sequence
        for word, number in numbers.items():
            if number % ranks:
                return (
                    f"{number} ({word}) cannot be divided among {ranks} ranks; choose a size that "
                    f"divides {number}"
                )
        return None


class Context(InGroups):
    """The sequence is divided: each rank computes on its part of the tokens, with the whole model.

    Only attention needs the other ranks. The ranks of a group share a batch. With fewer than all
    ranks in a group, the groups have separate parts of the global batch. Gradients are averaged
    over all ranks after the backward pass. Sources: Jacobs et al. 2023 (DeepSpeed-Ulysses); Liu et
    al. 2023 (ring attention); Dubey et al. 2024 (Llama 3), §3.3.2.

    Attributes:
        size: Ranks among which a sequence is divided, where there are so many; None: all.
        method: ``ulysses``: before attention the ranks exchange heads for tokens (all-to-all), so
            that each has the whole sequence for some heads, and back after it. ``ring``: keys and
            values pass around the ranks, in zigzag order, so that causal attention is equal work
            for all.
    """

    kind: Literal["context"] = "context"
    about = "context parallel: the tokens of every sample divided, attention across the ranks"
    operations = ("all_reduce", "all_to_all", "send_recv_ring")
    always_communicates = "attention needs the keys and values of the other ranks"
    no_race = "a race evaluates whole sequences, which no rank of a context parallel group has"
    plan_field = ("context_plan", "which says what of it is attention; choose gpt-long")
    method: Literal["ulysses", "ring"] = "ulysses"

    def why_not_itself(self, device: Device) -> str | None:
        """Say what a device's attention cannot do; None: it can all that is asked for."""
        if self.method == "ring" and device == "cuda" and not self.computes_in_bfloat16:
            return "flash attention on a GPU computes in 16 bits; choose Context(autocast=True)"
        return None

    def why_not_plan(self, plan: ContextPlan, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide a workload's sequence; None: it can."""
        numbers = {"heads": plan.heads, "tokens": plan.sequence}
        if self.method == "ring":
            numbers = {"tokens": plan.sequence}
        parts = 2 * ranks if self.method == "ring" else ranks
        for word, number in numbers.items():
            if number % parts:
                twice = ", two parts for each," if self.method == "ring" else ""
                return (
                    f"{number} ({word}) cannot be divided among {ranks} ranks{twice} with "
                    f"method={self.method!r}; choose a size whose parts divide {number}"
                )
        return None


class Expert(InGroups):
    """Expert parallel: the experts of a mixture are divided over the ranks, the rest is replicated.

    Tokens travel to the ranks of their experts and back, by all-to-alls with uneven splits. Every
    rank has a batch of its own. All else is data parallel: gradients of what every rank holds are
    averaged over all ranks, those of an expert over the ranks that hold it. Sources: Lepikhin et
    al. 2020 (GShard); Fedus et al. 2021 (Switch Transformer).

    Attributes:
        size: Ranks among which the experts of a layer are divided, where there are so many; None:
            all. With fewer than all there are several copies of every expert.
        experts: In every layer; None: as the workload has it.
        top_k: Experts that work on a token; None: as the workload has it.
        capacity_factor: An expert takes at most this many times the even share of a sample's
            tokens; None: as the workload has it.
        dropless: No token is dropped, however many an expert has.
    """

    kind: Literal["expert"] = "expert"
    about = "expert parallel: the experts of a mixture divided, tokens sent to them"
    operations = ("all_to_all", "all_reduce")
    always_communicates = "a token's experts are on other ranks"
    no_race = "no rank of an expert group has all experts, which a race evaluates"
    experts: int | None = None
    top_k: int | None = None
    capacity_factor: float | None = None
    dropless: bool = False

    def num_shards(self, world_size: int) -> int:
        """Return the number of ranks: each has a batch of its own."""
        return world_size

    def why_not_divided(self, workload: Divisible, world_size: int) -> str | None:
        """Say why N ranks cannot divide the experts of a workload; None: they can."""
        asked = {"experts", "top_k", "capacity_factor"} & self.model_dump(exclude_none=True).keys()
        if workload.own and (asked or self.dropless):
            return (
                f"{workload.name} is your own workload, whose model decides how tokens are routed; "
                f"leave {', '.join(sorted(asked)) or 'dropless'} out"
            )
        if not workload.known:
            return None
        if not workload.experts:
            return (
                f"{workload.name} has no experts; choose gpt-moe, or give your own workload experts"
            )
        top_k = workload.top_k if self.top_k is None else self.top_k
        ranks = self.ranks_per_group(world_size)
        for number in workload.experts if self.experts is None else (self.experts,):
            reason = self.why_not_experts(number, top_k, ranks)
            if reason is not None:
                return f"{workload.name}: {reason}"
        return None

    def why_not_itself(self, device: Device = "cpu") -> str | None:
        """Say why no router can do what is asked for; None: one can."""
        if self.dropless and self.capacity_factor is not None:
            return "dropless=True has no capacity_factor; give one of the two"
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            return (
                f"a capacity_factor of {self.capacity_factor:g} lets no token through; give a "
                "number above 0, or dropless=True"
            )
        return None

    def why_not_experts(self, experts: int, top_k: int, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide the experts of a layer; None: it can."""
        if experts < 1 or top_k < 1:
            return (
                f"a token needs an expert: experts is {experts} and top_k {top_k}; give 1 or more"
            )
        if top_k > experts:
            return f"top_k is {top_k} and there are {experts} experts; choose at most {experts}"
        if experts % ranks:
            return (
                f"{experts} experts cannot be divided among {ranks} ranks; choose a size that "
                f"divides {experts}"
            )
        return None
