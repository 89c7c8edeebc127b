"""The cells that the benchmarks launch: planned by scalebench, not put together by hand."""

from scalebench import machine
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Cell, Ddp, Plain, StepPlan, Strategy, Suite

WORKLOAD = "gpt-tiny"
GLOBAL_BATCH = 16


def cpu_cell(
    world_size: int,
    steps: StepPlan,
    global_batch: int = GLOBAL_BATCH,
    strategy: Strategy | None = None,
) -> Cell:
    """Return one measuring cell on CPU.

    Args:
        world_size: Ranks.
        steps: The plan of steps.
        global_batch: Samples of a step.
        strategy: None: the bare model at one rank, DDP at several.
    """
    case = Case(name="case", strategy=strategy or (Ddp() if world_size > 1 else Plain()))
    suite = Suite(
        name="bench",
        question="What does scalebench itself cost?",
        cases=(case,),
        workload=WORKLOAD,
        batch_size=global_batch,
        steps=steps,
        repeats=1,
    )
    request = Request(world_sizes=(world_size,), device="cpu")
    plan = make_plan(request, [suite], Machine(num_gpus=0, num_cores=machine.num_cores()))
    [cell] = [
        cell
        for cell in plan.cells
        if cell.purpose == "measure" and (cell.case, cell.world_size) == (case.name, world_size)
    ]
    return cell
