"""The published schemas say what the records are, and check-jsonschema takes what is stored.

``python -m tests.unit.records.test_schema`` writes them again after a field was added.
"""

import gzip
import json
import subprocess
import sys

from scalebench.records.run import RUN_FORMAT, RunInfo
from scalebench.records.summary import SUMMARY_FORMAT, Summary
from tests.builders.repository.documents import ROOT
from tests.examples import cases

MODELS = {SUMMARY_FORMAT: Summary, RUN_FORMAT: RunInfo}
GALLERY = ROOT / "reports" / "gallery"


def published(name):
    """Return the file of ``scalebench.summary/1``: ``schemas/summary-1.schema.json``."""
    return (
        ROOT / "scalebench" / "schemas" / f"{name.partition('.')[2].replace('/', '-')}.schema.json"
    )


def open_to_additions(schema):
    """Return a schema that lets newer versions add fields, which is no error for a reader.

    The default of a script's interpreter is another one on every machine: it is left out.
    """
    if isinstance(schema, dict):
        left_out = (("additionalProperties", False), ("default", sys.executable))
        return {k: open_to_additions(v) for k, v in schema.items() if (k, v) not in left_out}
    return [open_to_additions(one) for one in schema] if isinstance(schema, list) else schema


def schema_of(name):
    schema = MODELS[name].model_json_schema()
    schema["properties"]["format"] = {"const": name}
    schema["required"] = sorted({*schema["required"], "format"})
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    head["$id"] = f"urn:{name.replace('.', ':').replace('/', ':')}"
    return json.dumps(head | open_to_additions(schema), indent=1) + "\n"


def complaints(name, *documents):
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(published(name))]
    done = subprocess.run([*command, *map(str, documents)], capture_output=True, text=True)
    assert bool(done.returncode) == bool("ok -- validation done" not in done.stdout)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@cases("name", *MODELS)
def test_the_published_schema_is_that_of_the_records(name):
    assert published(name).read_text() == schema_of(name), f"python -m {__spec__.name} renews it"


def test_what_is_stored_fits(tmp_path):
    earlier = tmp_path / "0.1.json"
    golden = ROOT / "tests" / "golden" / "summaries-0.1" / "ddp-2-cores.show.json.gz"
    earlier.write_bytes(gzip.decompress(golden.read_bytes()))
    assert not complaints(SUMMARY_FORMAT, earlier, *GALLERY.glob("*/summary.json"))
    assert not complaints(RUN_FORMAT, *GALLERY.glob("*/run.json"))


@cases(
    "change, place",
    ({"format": "scalebench.summary/2"}, "$.format"),
    ({"rows": [{"case": "ddp"}]}, "$.rows[0]"),
    ({"environment": "a laptop"}, "$.environment"),
)
def test_what_is_no_summary_is_refused_at_its_place(change, place, tmp_path):
    summary = json.loads((GALLERY / "ddp-2-cores" / "summary.json").read_text())
    (tmp_path / "wrong.json").write_text(json.dumps(summary | change))
    assert f"{place}:" in complaints(SUMMARY_FORMAT, tmp_path / "wrong.json")


if __name__ == "__main__":
    for each in MODELS:
        published(each).write_text(schema_of(each))
