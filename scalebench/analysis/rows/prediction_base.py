"""From which size a case is predicted: N=1, or the smallest one that shows what a script sends.

What a user's script sends is known from its traces alone. Where it sends nothing at N=1, or less
than among several ranks (FSDP gathers nothing there), N=1 shows no moments to replay.
"""

from scalebench.analysis.rows.launches import Launches, Table
from scalebench.spec import Script


def prediction_base(row: Launches, table: Table) -> Launches | None:
    """Return the launches that a row's case is predicted from; None: there are none at N=1.

    None as well where a rank's work at this N is not known.

    Of a script the smallest N ≥ 2 whose steps were traced, if ranks send there what one rank does
    not; of anything else N=1.
    """
    if row.no_ratio:
        return None
    suite, case, _ = row.cell.row_key
    at_one = table.get((suite, case, 1))
    if not isinstance(row.cell.strategy, Script):
        return at_one
    several = [
        launches
        for (of_suite, of_case, world_size), launches in table.items()
        if (of_suite, of_case) == (suite, case) and world_size > 1 and launches.attributed
    ]
    smallest = min(several, key=lambda launches: launches.cell.world_size, default=None)
    if smallest is None or _sent(smallest) <= _sent(at_one):
        return at_one
    return smallest


def _sent(launches: Launches | None) -> set[str]:
    """Return the kinds of operations that carry something in the traced steps of rank 0."""
    if launches is None:
        return set()
    return {
        op.kind
        for launch in launches.attributed.values()
        for op in launch.traces[0].operations
        if op.num_bytes
    }
