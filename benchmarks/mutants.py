"""How much do the unit tests notice? Small defects, put into a copy of the code one at a time.

``python -m benchmarks.mutants --count 200 --seed 1`` draws places at random, every place of the
packages as likely as any other, changes one (``<`` for ``<=``, a number plus one, ``min`` for
``max``: see ``benchmarks/mutations.py``) and runs the unit tests that execute the place (see
``benchmarks/mutant_tests.py``). A test that fails has noticed, and so has one that uses many times
its processor time. Each result is added to a file at once; a second call goes on where the first
ended. The working tree stays as it is.

A change that leaves what the code does as it was is no defect. Such changes are found by reading
those that no test notices; ``benchmarks/mutants_equivalent.txt`` lists them, each with its reason.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.called_functions import FOLDER, PACKAGES, Called, load_calls
from benchmarks.mutant_tests import (
    UNDECIDED,
    fails_anyway,
    near_files,
    preload,
    run_tests,
    tests_of,
)
from benchmarks.mutations import places_of

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.txt")
SOUND = "tests/unit/trace/test_intervals.py"


@dataclass(frozen=True)
class Mutant:
    """One change: at byte ``begin`` of a file ``after`` stands for ``before``."""

    path: str
    line: int
    begin: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}  {' '.join(self.before.split())}  →  {' '.join(self.after.split())}"

    def in_its_line(self) -> str:
        """Return the change with its line of code; on another line it is another change."""
        line = (ROOT / self.path).read_text(encoding="utf-8").splitlines()[self.line - 1]
        return f"{self.path}  {line.strip()}  {str(self).removeprefix(self.path).strip()}"


def draw(packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` different places of packages, folders or modules, and a change for each."""
    sources = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in packages
        for path in modules(ROOT / "scalebench" / package)
    }
    places = [(path, place) for path, source in sources.items() for place in places_of(source)]
    generator = random.Random(seed)
    mutants = []
    for path, place in generator.sample(places, min(count, len(places))):
        before = sources[path][place.begin : place.end].decode()
        after = generator.choice(place.choices)
        mutants.append(Mutant(path, place.line, place.begin, before, after))
    return mutants


def modules(place: Path) -> list[Path]:
    """Return the modules of a folder; a module is itself."""
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def try_mutant(tree: Path, mutant: Mutant, calls: dict[str, Called] | None) -> dict[str, Any]:
    """Change the copy, run the tests, change it back; return the mutant and what noticed it."""
    if calls is None:
        selected = near_files(tree, mutant.path)
    else:
        selected = tests_of(tree, mutant.path, mutant.line, calls)
    calls = calls or {}
    file = tree / mutant.path
    source = file.read_bytes()
    rest = source[mutant.begin + len(mutant.before.encode()) :]
    file.write_bytes(source[: mutant.begin] + mutant.after.encode() + rest)
    noticed, tests = "", list[str]()
    try:
        for tests in selected:
            if noticed := run_tests(tree, tests, calls):
                break
    finally:
        file.write_bytes(source)
    if fails_anyway(tree, noticed, tests, calls):
        print(f"{noticed} fails on the unchanged code.", flush=True)
        noticed = UNDECIDED
    return asdict(mutant) | {"noticed_by": noticed}


def record_calls(folder: Path, processes: int) -> dict[str, Called]:
    """Run the unit tests whose calls are not known, on the code as it is; return all calls."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    command += ["-n", str(processes), "--dist", "loadfile", "--timeout", "0"]
    command += ["-p", "benchmarks.called_functions", "--hypothesis-profile", "quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), FOLDER: str(folder)}
    ended = subprocess.run([*command, "tests/unit"], cwd=ROOT, env=environment)
    if ended.returncode not in (0, 5):  # 5: nothing was left to run
        raise SystemExit("Unit tests fail on the unchanged code.")
    return load_calls(ROOT, folder)


def copy_tree(to: Path) -> Path:
    """Copy what git tracks or would track, as it is now."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def wilson(noticed: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, without continuity correction)."""
    z = 1.959964
    share = noticed / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (middle - half) / scale, (middle + half) / scale


def equivalents() -> dict[str, str]:
    """Return the changes that are known to change nothing, each with its reason."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return {change: reason for change, _, reason in (line.partition("  #  ") for line in lines)}


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print what was not noticed, and the share of what was, for each package and in all."""
    total, noticed, apart = Counter[str](), Counter[str](), Counter[str]()
    reasons = equivalents()
    for result in results:
        fields = {name: value for name, value in result.items() if name != "noticed_by"}
        mutant, by = Mutant(**fields), result["noticed_by"]
        if not by or by == UNDECIDED:
            why = by or reasons.get(mutant.in_its_line(), "CHANGES WHAT THE CODE DOES")
            print(f"line {mutant.line} of {mutant}  #  {why}")
            apart[why if why == UNDECIDED else "equivalent"] += why != "CHANGES WHAT THE CODE DOES"
            if why != "CHANGES WHAT THE CODE DOES":
                continue
        for package in (mutant.path.split("/")[1], "all"):
            total[package] += 1
            noticed[package] += bool(by)
    print(
        f"{len(results)} drawn, {apart['equivalent']} change nothing, {apart[UNDECIDED]} undecided"
    )
    for package, count in sorted(total.items()):
        low, high = (100 * end for end in wilson(noticed[package], count))
        share = 100 * noticed[package] / count
        print(
            f"{package:<10} {noticed[package]:>4} of {count:>4} noticed, "
            f"{share:.1f} % (95 % interval {low:.1f} to {high:.1f})"
        )


_Result = tuple[Mutant, dict[str, Any]]
_own: list[Any] = []


def try_all(
    mutants: Sequence[Mutant], processes: int, calls: dict[str, Called] | None
) -> Iterator[_Result]:
    """Yield each mutant with its result as soon as it is known, and print it."""
    preload()
    context = multiprocessing.get_context("fork")
    trees: multiprocessing.SimpleQueue[Path] = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(processes):
            tree = copy_tree(Path(temporary) / str(number))
            if failed := run_tests(tree, [SOUND], {}):
                raise SystemExit(f"{failed} fails on the unchanged code.")
            trees.put(tree)
        with context.Pool(processes, _take_tree, (trees, calls)) as pool:
            for mutant, result in pool.imap_unordered(_try_in_own_tree, mutants):
                print(f"{mutant}  #  {result['noticed_by'] or 'NOT NOTICED'}", flush=True)
                yield mutant, result


def _take_tree(trees: "multiprocessing.SimpleQueue[Path]", calls: dict[str, Called] | None) -> None:
    _own[:] = [trees.get(), calls]


def _try_in_own_tree(mutant: Mutant) -> _Result:
    tree, calls = _own
    return mutant, try_mutant(tree, mutant, calls)


def package(given: str) -> str:
    """Return a package, or a folder or module of one, as given."""
    if given.split("/")[0] not in PACKAGES or not (ROOT / "scalebench" / given).exists():
        valid = ", ".join(PACKAGES)
        raise argparse.ArgumentTypeError(f"{given!r} is not in {valid}")
    return given


def main() -> None:
    """Draw, try what was not tried yet, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--package",
        type=package,
        nargs="+",
        help="these alone; also a folder or a module of one: costmodel/links, gate/family.py",
    )
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--calls", type=Path, default=ROOT / "build" / "calls")
    parser.add_argument(
        "--near",
        action="store_true",
        help="only the test files that name the changed module: quick; then all with --again",
    )
    parser.add_argument("--again", action="store_true", help="repeat what was not noticed")
    parser.add_argument("--show", action="store_true", help="print the results so far, try nothing")
    options = parser.parse_args()
    mutants = draw(options.package or PACKAGES, options.count, options.seed)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    results = {}
    for line in options.results.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        results[Mutant(**{k: v for k, v in result.items() if k != "noticed_by"})] = result
    todo = [
        mutant
        for mutant in mutants
        if mutant not in results
        or (options.again and results[mutant]["noticed_by"] in ("", UNDECIDED))
    ]
    if todo and not options.show:
        calls = None if options.near else record_calls(options.calls, options.processes)
        for mutant, result in try_all(todo, options.processes, calls):
            results[mutant] = result
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
    show([results[mutant] for mutant in mutants if mutant in results])


if __name__ == "__main__":
    main()
