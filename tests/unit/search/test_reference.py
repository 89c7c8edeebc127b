import json
from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.report.search import render_against
from scalebench.report.tables.layout import Screen
from scalebench.search.devices.sources import compare, read_references
from scalebench.search.prediction.speed import short_name
from tests.builders.repository.field_files import field_file
from tests.builders.summaries import estimate, make_row, make_summary
from tests.examples import cases

RUN = str(Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores")
H100 = {"devices": [{"name": "NVIDIA H100 80GB HBM3"}] * 8}
OWN = (
    "GPU,gpus,model,seq,tokens_per_s,sharding,source\n"
    "h100_80gb,8,7b,2048,80000,FSDP,our cluster in May\n"
    "H100-80GB,8,6.7B,2048,100000,FSDP,the cluster of others\n"
    "H100-80GB,8,6.7B,2048,,FSDP,out of memory\n"
    "A100-SXM4-40GB,8,7b,2048,30000,FSDP,old\n"
)


def run(tokens_per_s=62000.0, parameters=6_700_000_000, world_size=8, tokens=2048, **environment):
    row = make_row(
        "fsdp",
        world_size,
        device="cuda",
        num_parameters=parameters,
        tokens_per_s=estimate(tokens_per_s),
        throughput=estimate(tokens_per_s / tokens),
    )
    return make_summary([row], environment=environment or H100)


def table(tmp_path, text=OWN):
    (tmp_path / "own.csv").write_text(text)
    return tmp_path / "own.csv"


def test_a_row_is_a_part_of_the_fastest_result_that_is_alike(tmp_path):
    (found,) = compare(run(), read_references(table(tmp_path)))
    assert found.part.value == pytest.approx(0.62)
    assert found.part.low < 0.62 < found.part.high
    assert found.num_alike == 2
    said = render_against([found], Screen(300))
    assert "62 % of what 8 × H100 reach with a 6.70B model of 2,048 tokens a sample" in said
    assert "under FSDP (the cluster of others). Fastest of 2 that are alike." in said


@cases(
    "other",
    *({"world_size": 16}, {"parameters": 1_300_000_000}, {"tokens": 8192}),
    *({"devices": [{"name": "NVIDIA H100 PCIe"}]}, {"devices": []}),
)
def test_where_none_is_alike_the_nearest_is_named_and_nothing_compared(other, tmp_path):
    (found,) = compare(run(**other), read_references(table(tmp_path)))
    assert found.part is None and found.reference is not None
    said = render_against([found], Screen(300, ascii_only=True))
    assert "nothing is compared. Nearest: 8 x " in said and "%" not in said
    assert render_against([found, found], Screen(300, ascii_only=True)).count("Nearest") == 1


@cases(
    "name, short",
    ("NVIDIA H100 80GB HBM3", "h100"), ("h100_80gb", "h100"), ("NVIDIA A100-SXM4-40GB",
    "a100-40gb"), ("DGX-GB200", "gb200"), ("DGX-B300", "b300"), ("NVIDIA GH200 480GB",
    "nvidia gh200 480gb"),
    ("NVIDIA A10", "a10"), ("NVIDIA H100 NVL", "h100-nvl"),
)  # fmt: skip
def test_a_device_has_one_name_and_others_of_another_speed_have_not_the_same(name, short):
    assert short_name(name) == short


@cases(
    "file, speed, parameters, gpus",
    ("fms_fsdp_llama2_a100.csv", 3760, 7e9, 128),
    ("llm_foundry_mpt.csv", 1007, 64862437376, 512),
    ("ultrascale_playbook_h100.csv", 38895, 1.34e9, 8),
    ("megatron_bridge_perf.csv", 28672, 120e9, 64),
)
def test_published_tables_are_read_as_they_are(file, speed, parameters, gpus):
    first = read_references(field_file("predict") / file)[0]
    assert first.tokens_per_s_per_gpu == pytest.approx(speed, rel=0.01)
    assert (first.parameters, first.gpus) == (pytest.approx(parameters, rel=0.05), gpus)


@cases(
    "text, word",
    ("", "lacks gpu, gpus, sequence"),
    ("model,gpus,tokens_per_s\n7b,8,1\n", "lacks gpu, sequence"),
    ("gpu,gpus,seq,tokens_per_s\nh100,8,2048,1\n", "no line with the size of a model"),
    ("gpu,gpus,seq,model,tokens_per_s\nh100,8,2048,7b,fast\n", "line 2: could not convert"),
    ("gpu,gpus,seq,model,tokens_per_s\nh100,0,2048,7b,9\n", "line 2: gpus = '0'"),
    ("gpu,gpus,seq,model,tokens_per_s\nh100,8,x,7b,9\n", "line 2: sequence = 'x'"),
    ("gpu,gpus,seq,model,step_s\nh100,8,2048,7b,9\n", "speed of a step needs batch"),
)
def test_a_bad_table_is_refused_in_one_line(text, word, tmp_path):
    with pytest.raises(UsageError, match=word) as refused:
        read_references(table(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_the_command_says_it_and_json_has_it(in_process, tmp_path):
    file = table(tmp_path, "gpu,gpus,sequence,model,tokens_per_s\ncpu,2,64,0.44m,40000\n")
    shown = in_process("show", RUN, "--reference", str(file))
    assert "of what 2 × CPU reach with a 440k model of 64 tokens a sample" in shown.stdout
    found = json.loads(in_process("show", RUN, "--reference", str(file), "--json").stdout)
    at_two = [one for one in found if one["world_size"] == 2 and one["case"] == "ddp"]
    assert at_two[0]["part"]["value"] > 0
    missing = in_process("show", RUN, "--reference", "none.csv")
    assert missing.returncode == 2 and len(missing.stderr.splitlines()) == 1
