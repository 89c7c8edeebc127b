"""What a script does that cannot be measured: one line each, with what to do about it."""


class ScriptProblem(Exception):
    """The script cannot be measured as it is; the text says why, and what to change."""


class NoStep(ScriptProblem):
    """The script has ended by itself, without a step; the text says what it may need.

    At another number of ranks it may train.
    """


OLDEST_TORCH = (2, 4)

TOO_OLD = "torch {version} is too old to watch a script: 2.4 or newer is needed"

NO_GROUP = (
    "the processes train separately: the script made no process group, so each rank did the whole "
    "job alone. Call torch.distributed.init_process_group() and wrap the model, for example in "
    "DistributedDataParallel; RANK, LOCAL_RANK and WORLD_SIZE are set as torchrun sets them"
)

SMALL_GROUP = (
    "the processes train separately: the script's process group has {size} of the {ranks} ranks. "
    "Have it take RANK and WORLD_SIZE from the environment; they are set as torchrun sets them"
)

NO_EXCHANGE = (
    "the processes train separately: they made a process group and exchanged {what} in {steps} "
    "steps. {model} is not wrapped, or not called through its wrapper: wrap it, for example in "
    "DistributedDataParallel, and call the wrapped model. If the script exchanges something only "
    "every so many steps, have more of them measured with --steps"
)

WRONG_DEVICE = (
    "the script trains on a GPU, and the run was started with --device cpu. Leave out --device cpu"
)

SPAWNS = (
    "the script starts its own ranks with multiprocessing. Each rank is already a process here: "
    "call the function that they run directly, with int(os.environ['RANK']) as its rank and "
    "int(os.environ['WORLD_SIZE']) as the number of processes"
)

STARTS_RANKS = (
    "the script starts {launcher}, which starts ranks as well, and scalebench starts the ranks "
    "already: give the training script itself, for example scalebench run -- {script}"
)

NO_STEP = "the script ended without a training step"

IF_IT_TRAINED = "If it trained, call scalebench.step() after each step"

NO_OPTIMIZER = (
    "the script made {passes} backward passes and no training step that scalebench sees: after "
    "none of them an optimizer of torch was called. If it updates its parameters by hand or with "
    "an optimizer of another kind, call scalebench.step() after each update"
)

ONLY_OTHERS = (
    "a rank made no training step, and another made all that are measured: let every rank call its "
    "optimizer, or their models drift apart"
)

OWN_PROCESSES = (
    "It has started processes, which are not watched. If they train: each rank is already a "
    "process here, so call their function directly, with int(os.environ['RANK']) as the rank"
)


def check_torch(version: str) -> None:
    """Raise ScriptProblem if a version of torch, such as ``2.13.0+cpu``, is too old."""
    numbers = version.split("+")[0].split(".")[:2]
    if all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) < OLDEST_TORCH:
        raise ScriptProblem(TOO_OLD.format(version=version))
