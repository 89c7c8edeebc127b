"""How much do the unit tests notice? Small defects, put into a copy of the code one at a time.

``python -m benchmarks.mutants --count 200 --seed 1`` draws places at random, every place of the
packages as likely as any other, changes one (``<`` for ``<=``, a number plus one, ``min`` for
``max``: see ``benchmarks/mutations.py``), runs the unit tests of its package and, if those pass,
the cheap ones of what uses its results. A test that fails has noticed, and so has one that does
not end. Each result is added to a file at once; a second call goes on where the first ended.
The working tree stays as it is.
"""

import argparse
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutations import places_of

ROOT = Path(__file__).parents[1]
USERS = {
    "gate": ("tests/unit/report/gate", "tests/unit/cli/test_gate.py"),
    "analysis": (
        "tests/unit/records/test_old_runs.py",
        "tests/unit/report/findings",
        "tests/unit/report/test_table.py",
        "tests/unit/report/test_budget.py",
    ),
    "costmodel": (
        "tests/unit/analysis",
        "tests/unit/records/test_old_runs.py",
        "tests/unit/session/calibration/test_sweeps.py",
        "tests/unit/session/search",
        "tests/unit/worker/strategies/test_execution.py",
    ),
    "trace": ("tests/unit/analysis",),
}
"""Package → tests of what its results are used for, as far as they take seconds."""
CPU_S, WALL_S, MEMORY_BYTES = 120, 900.0, 8 << 30
"""Limits of one run of tests, in processor time so that a busy machine does not matter."""


@dataclass(frozen=True)
class Mutant:
    """One change: at byte ``begin`` of a file ``after`` stands for ``before``."""

    path: str
    line: int
    begin: int
    before: str
    after: str


def draw(packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw ``count`` different places of the packages, and a change for each."""
    sources = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in packages
        for path in sorted((ROOT / "scalebench" / package).rglob("*.py"))
    }
    places = [(path, place) for path, source in sources.items() for place in places_of(source)]
    generator = random.Random(seed)
    mutants = []
    for path, place in generator.sample(places, min(count, len(places))):
        before = sources[path][place.begin : place.end].decode()
        after = generator.choice(place.choices)
        mutants.append(Mutant(path, place.line, place.begin, before, after))
    return mutants


def tests_of(tree: Path, path: str) -> list[str]:
    """Return the test files of a module's package: first its own, then those that name it."""
    module = Path(path).stem
    package = package_of(path)
    dotted = path.removesuffix(".py").replace("/", ".")

    def order(test: Path) -> tuple[bool, bool, int]:
        text = test.read_text(encoding="utf-8")
        return test.stem != f"test_{module}", dotted not in text, len(text)

    files = sorted((tree / "tests" / "unit" / package).rglob("test_*.py"), key=order)
    return [str(file.relative_to(tree)) for file in files]


def run_tests(tree: Path, tests: Sequence[str]) -> str:
    """Return what noticed: a test, "time limit" or "import"; "" if all tests passed."""
    command = ["prlimit", f"--cpu={CPU_S}", f"--as={MEMORY_BYTES}"]
    command += [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"]
    command += ["-p", "no:cacheprovider", "--hypothesis-profile", "quick", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=WALL_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "time limit"
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        return "time limit"
    failed = [line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")]
    return failed[0] if failed else "import"


def try_mutant(tree: Path, mutant: Mutant) -> dict[str, Any]:
    """Change the copy, run the tests, change it back; return the mutant and what noticed it."""
    file = tree / mutant.path
    source = file.read_bytes()
    rest = source[mutant.begin + len(mutant.before.encode()) :]
    file.write_bytes(source[: mutant.begin] + mutant.after.encode() + rest)
    try:
        tests, users = tests_of(tree, mutant.path), USERS[package_of(mutant.path)]
        noticed = run_tests(tree, tests) or run_tests(tree, users)
    finally:
        file.write_bytes(source)
    return asdict(mutant) | {"noticed_by": noticed}


def package_of(path: str) -> str:
    """Return the package that a module belongs to."""
    return Path(path).parts[1]


def check_unchanged(tree: Path, mutants: Sequence[Mutant]) -> None:
    """Run the tests on the copy as it is; exits where they fail, since nothing could be learnt."""
    for package, path in {package_of(m.path): m.path for m in mutants}.items():
        if failed := run_tests(tree, [*tests_of(tree, path), *USERS[package]]):
            raise SystemExit(f"{failed} fails on the unchanged code.")


def copy_tree(to: Path) -> Path:
    """Copy what git tracks or would track, as it is now."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    return to


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print what was not noticed, and the share of what was, for each package and in all."""
    total, noticed = Counter[str](), Counter[str]()
    for result in results:
        for package in (package_of(result["path"]), "all"):
            total[package] += 1
            noticed[package] += bool(result["noticed_by"])
        if not result["noticed_by"]:
            before, after = " ".join(result["before"].split()), result["after"]
            print(f"{result['path']}:{result['line']}  {before}  →  {after}")
    for package, count in sorted(total.items()):
        share = 100 * noticed[package] / count
        print(f"{package:<10} {noticed[package]:>4} of {count:>4} noticed, {share:.1f} %")


def main() -> None:
    """Draw, try what was not tried yet, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", choices=list(USERS), nargs="+", help="these alone")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--again", action="store_true", help="repeat what was not noticed")
    options = parser.parse_args()
    mutants = draw(options.package or list(USERS), options.count, options.seed)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    results = {}
    for line in options.results.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        results[Mutant(**{k: v for k, v in result.items() if k != "noticed_by"})] = result
    done = {m for m, result in results.items() if result["noticed_by"] or not options.again}
    trees: queue.Queue[Path] = queue.Queue()

    def attempt(mutant: Mutant) -> None:
        tree = trees.get()
        results[mutant] = try_mutant(tree, mutant)
        trees.put(tree)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(results[mutant], ensure_ascii=False) + "\n")
        print(f"{mutant.path}:{mutant.line}", results[mutant]["noticed_by"] or "NOT NOTICED")

    todo = [mutant for mutant in mutants if mutant not in done]
    with tempfile.TemporaryDirectory() as folder:
        copies = [copy_tree(Path(folder) / str(number)) for number in range(options.processes)]
        check_unchanged(copies[0], todo)
        for copy in copies:
            trees.put(copy)
        with ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(attempt, todo))
    show([results[mutant] for mutant in mutants])


if __name__ == "__main__":
    main()
