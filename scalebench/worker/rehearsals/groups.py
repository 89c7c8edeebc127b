"""Groups of fewer than all ranks, each made once however many operations it does."""

import torch.distributed as dist

from scalebench.spec.probes import Rehearsal, RehearsedOperation, Transfer
from scalebench.worker.collectives.operations import Operation, build
from scalebench.worker.process.context import JobContext


class Groups:
    """The process groups of a rehearsal; all ranks have to ask for the same, in the same order."""

    def __init__(self, context: JobContext[Rehearsal]) -> None:
        self.context = context
        self._own: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup] = {}

    def operation(self, planned: RehearsedOperation) -> Operation:
        """Return an operation among all ranks, or among those of this rank's group."""
        transfer = Transfer(operation=planned.op, size_bytes=planned.size_bytes)
        if planned.groups is None:
            return build(transfer, self.context)
        return build(transfer, self.context, self._group(planned.groups))

    def _group(self, groups: tuple[tuple[int, ...], ...]) -> dist.ProcessGroup:
        """Return this rank's one of some groups that have every rank in them."""
        if groups not in self._own:
            for ranks in groups:
                made = dist.new_group(list(ranks))
                if self.context.rank in ranks:
                    self._own[groups] = made
        return self._own[groups]
