"""Whatever happens to a run's files: what is read is what was written, or it is not read at all."""

import json
import shutil
import string
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scalebench.analysis.run import StoredRun, load_run
from scalebench.analysis.summarise import summarise
from scalebench.errors import UsageError
from scalebench.records import files
from scalebench.records.paths import RunPaths
from tests.builders.runs import make_stored_run
from tests.examples import examples

pytestmark = pytest.mark.slow

documents = st.dictionaries(st.text(string.ascii_letters, min_size=1), st.text(), min_size=1)


@given(documents, st.sampled_from([None, 1]))
def test_a_sealed_object_is_the_object_and_its_seal(content, indent):
    text = files.with_checksum(json.dumps(content, indent=indent))
    assert files.verify_checksum(text)
    read = json.loads(text)
    assert {**read, **content} == read and len(read["sha256"]) == 64
    assert not files.verify_checksum(json.dumps(content))


def sealed_run(folder):
    paths = make_stored_run(folder)
    run = load_run(folder)
    files.write_checked(paths.run_json, run.info.model_copy(update={"sealed": True}))
    for cell_id, result in run.results.items():
        files.write_checked(paths.cell(cell_id), result, indent=None)
    return paths


class Pristine(NamedTuple):
    """A run that nothing has happened to; short to print, or hypothesis warns of its length."""

    paths: RunPaths
    run: StoredRun

    def __repr__(self):
        return "Pristine()"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    paths = sealed_run(tmp_path_factory.mktemp("sealed") / "run")
    return Pristine(paths, load_run(paths.root))


def damaged(data, raw):
    kind = data.draw(st.sampled_from(["flip", "cut", "drop", "twice", "overwrite", "digits"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    upto = data.draw(st.integers(at, min(len(raw), at + 200)))
    changed = {
        "flip": lambda: raw[:at] + bytes([raw[at] ^ (1 << data.draw(st.integers(0, 7)))]),
        "cut": lambda: raw[:at],
        "drop": lambda: raw[:at],
        "twice": lambda: raw[:upto] + raw[at:upto],
        "overwrite": lambda: raw[:at] + data.draw(st.binary(max_size=20)),
        "digits": lambda: raw[:at] + b"9e999",
    }[kind]()
    rest = {"flip": raw[at + 1 :], "cut": b"", "drop": raw[upto:], "twice": raw[upto:]}
    return changed + rest.get(kind, raw[len(changed) :])


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_becomes_a_number(pristine, tmp_path, data):
    """A bounded campaign against the loader: no crash, no hang, and nothing false."""
    original, before = pristine
    names = sorted(str(p.relative_to(original.root)) for p in original.root.rglob("*.json*"))
    name = data.draw(st.sampled_from(names))
    raw = (original.root / name).read_bytes()
    spoilt = damaged(data, raw)
    root = tmp_path / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(original.root, root)
    (root / name).write_bytes(spoilt)
    try:
        run = load_run(root)
    except UsageError as error:
        assert name == "run.json" and "run.json" in str(error)
        return
    assert run.info == before.info
    assert set(run.results) >= set(before.results) - {Path(name).name.removesuffix(".json.gz")}
    for cell_id, result in run.results.items():
        assert result == before.results[cell_id]
    if len(run.results) < len(before.results):
        assert list(run.damaged) == [Path(name).name]
        notices = summarise(run).notices
        assert any(f"{Path(name).name} was set aside" in notice for notice in notices)


def test_a_cell_without_its_seal_is_set_aside_where_the_run_is_sealed(tmp_path):
    paths = sealed_run(tmp_path / "run")
    cell = next(paths.cells.iterdir())
    content = json.loads(files.read_text(cell))
    del content["sha256"]
    cell.write_bytes(files.packed(cell, json.dumps(content)))
    assert "checksum is missing" in load_run(paths.root).damaged[cell.name]
    info = json.loads(paths.run_json.read_text())
    del info["sha256"]
    paths.run_json.write_text(json.dumps(info))
    with pytest.raises(UsageError, match=r"run\.json is damaged: its checksum is missing"):
        load_run(paths.root)


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5)
    ),
    max_leaves=10,
)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(which=1, turns=[153], nonsense=-1)  # a launch that took less than no time
@example(which=1, turns=[96], nonsense=1.7e174)  # an interval that ends beyond every float
@given(
    which=st.integers(0, 99),
    turns=st.lists(st.integers(0, 999), min_size=1, max_size=8),
    nonsense=nested,
)
def test_nonsense_in_any_field_of_an_unsealed_file_is_no_crash(
    pristine, tmp_path, which, turns, nonsense
):
    """Files that others write bear no seal: they are held against the schema alone."""
    paths = RunPaths(tmp_path / "run")
    if not paths.root.exists():
        make_stored_run(paths.root)
    cells = sorted(paths.cells.iterdir())
    target = cells[which % len(cells)]
    kept = target.read_bytes()
    content = json.loads(files.read_text(target))
    inside = content
    for turn in turns:  # further down, as long as there is something below
        holder, keys = inside, sorted(inside) if isinstance(inside, dict) else range(len(inside))
        key = keys[turn % len(keys)]
        inside = holder[key]
        if not inside or not isinstance(inside, dict | list):
            break
    holder[key] = nonsense
    target.write_bytes(files.packed(target, json.dumps(content)))
    try:
        run = load_run(paths.root)
        summarise(run)
    finally:
        target.write_bytes(kept)
    assert set(run.damaged) <= {target.name}
