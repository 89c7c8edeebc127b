# make run                              train, measure, print the table, write the report
# make run GPUS=1,2,4 SUITES="ddp"      the same with other sizes or suites
# make check                            linters, type check, quick unit tests: about a minute
# make test                             the whole suite, linters and type check
# make size                             how large the code is, beside what it should be
# make bench                            the benchmarks
# make gallery                          the pages of the committed runs, and their index
# make bench-predict                    steps of eight virtual hosts, predicted from one, two and four
# make bench-coverage                   how often intervals of efficiency hold, simulated
# make bench-gate                       the gate's false alarms and power, beside other rules, and
#                                       where runs differ by their hosts
# make attack                           attacks a fresh installation as a user of its own (as root)
# make gpu-evidence                     all that one GPU can show, in 40 minutes; call again to go on
# make gpu-evidence SHORT=1             most of it, in 8 minutes
# make cuda-wheel                       the newest CUDA wheel of torch, without a GPU, in an
#                                       environment of its own (3 GB to download)
# make bench-scale                      records, summary, page and traces of up to 4,096 ranks
# make site                             the documents as a searchable site, build/site
# make torch-matrix                     a short set of tests with torch 2.11 and all newer ones;
#                                       TORCH=2.14.1 with this one alone
# make release                          builds, checks and tries wheel and sdist; says how to upload
# make frameworks-env                   DeepSpeed, Accelerate, FairScale, Lightning, TRL, PyTorch
#                                       Geometric, TensorBoard, W&B, MLflow, torchvision, timm, Ray,
#                                       torchx and a notebook's kernel, in an environment of their
#                                       own; in another mkdocs, twine, uv, pre-commit, ReFrame, SkyPilot
# make horovod                          Horovod's wheel, built from its source into that environment
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPUS ?= 1,2
SUITES ?= ddp
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
FRAMEWORKS_VENV := .venv-frameworks
TOOLS_VENV := .venv-tools
TOOLS ?= $(TOOLS_VENV)/bin
export PAGES ?= build/pages
CUDA_VENV := .venv-cuda
CUDA_STAMP := $(CUDA_VENV)/.installed
FRAMEWORKS_STAMP := $(FRAMEWORKS_VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
FRAMEWORKS_PIP := $(FRAMEWORKS_VENV)/bin/python -m pip install --quiet \
  --disable-pip-version-check --no-compile -c constraints.txt -c constraints-frameworks.txt
## pip compiles with one core.
COMPILE := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
## The tests start some thousand processes: none of them compiles the same modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help size attack run check test lint types unit tests bench bench-predict bench-scale clean bench-gate gallery gpu-evidence bench-coverage frameworks-env horovod cuda-wheel pages site release torch-matrix

help:
	@sed -n 's/^# //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "scalebench needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 5; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -c constraints.txt -e .
	@$(COMPILE)
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@$(COMPILE)
	@touch $(RUN_STAMP) $@

run: $(RUN_STAMP)
	@$(BIN)/scalebench run $(SUITES) --gpus $(GPUS)

gallery: $(RUN_STAMP)
	@$(BIN)/python -m scalebench.cli.gallery reports/gallery

check: lint types unit

test: lint types tests

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP)
	$(BIN)/mypy

## What starts no ranks and is quick, with fewer examples of each property.
unit: $(DEV_STAMP)
	$(BIN)/pytest tests/unit -m "not slow" -n auto --dist worksteal --hypothesis-profile quick

## What looks at results alone runs on all cores at once, the long files before the short ones of
## tests/unit; what measures has the machine to itself. With a spin count of 0 OpenMP's threads sleep
## while they wait, and take no core from other tests.
tests: $(DEV_STAMP)
	GOMP_SPINCOUNT=0 $(BIN)/pytest tests -m "not timed" -n auto --dist loadfile --no-loadscope-reorder --durations 50
	$(BIN)/pytest tests --ignore tests/unit -m timed --durations 50

size:
	@$(PYTHON) -m tests.tools.sizes

bench: $(DEV_STAMP)
	$(BIN)/pytest benchmarks -p benchmark --benchmark-only -s

bench-predict: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.prediction

bench-gate: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.gate_power --write benchmarks/evidence.md
	$(BIN)/python -m benchmarks.gate_hosts --write benchmarks/evidence.md

attack: $(DEV_STAMP)
	$(BIN)/python tests/tools/attack.py

gpu-evidence: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.gpu_evidence $(if $(SHORT),--short)

bench-coverage: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.coverage --write benchmarks/evidence.md

bench-scale: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.at_scale

## The links of a page lead to others, and to a few programs.
pages:
	rm -rf $(PAGES) && mkdir -p $(PAGES)
	git ls-files -z '*.md' docs 'benchmarks/*.py' ':!tests' ':!.github' | xargs -0 cp --parents -t $(PAGES)

site: $(TOOLS)/mkdocs pages
	$(TOOLS)/mkdocs build --quiet --strict
	@echo build/site/index.html

release: $(DEV_STAMP) $(TOOLS)/mkdocs
	TOOLS=$(TOOLS) TORCH="$(TORCH)" .ci/release

torch-matrix: $(DEV_STAMP)
	.ci/torch-matrix $(TORCH)

## Without torch, and apart from it: SkyPilot asks for other versions.
$(TOOLS_VENV)/bin/mkdocs: constraints-tools.txt
	$(PYTHON) -m venv $(TOOLS_VENV)
	$(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  -c constraints-tools.txt mkdocs-material twine uv pre-commit reframe-hpc skypilot
	@touch $@

frameworks-env: $(FRAMEWORKS_STAMP) $(TOOLS_VENV)/bin/mkdocs

horovod: $(FRAMEWORKS_STAMP)
	.ci/build-horovod $(FRAMEWORKS_VENV)/bin/python

## Not in the tests: what pip gives as the newest torch changes from day to day.
cuda-wheel: $(CUDA_STAMP)
	$(CUDA_VENV)/bin/python -m pytest -c /dev/null --rootdir=. --noconftest -p no:cacheprovider \
	  tests/tools/cuda_wheel.py

$(CUDA_STAMP): pyproject.toml
	$(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade torch -e .
	@touch $@

## The registry's torchvision is built for CUDA: next to torch for the CPU it breaks whatever imports
## it, such as transformers. So image models lie in a folder of their own, which their test names.
## torch first, as pinned: what follows then brings no other. DeepSpeed reads torch to build its
## wheel, and compiles nothing. torchx asks for an urllib3 of 2023 and works with newer ones.
$(FRAMEWORKS_STAMP): pyproject.toml constraints.txt constraints-frameworks.txt
	$(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_PIP) torch setuptools wheel
	DS_BUILD_OPS=0 $(FRAMEWORKS_PIP) --no-build-isolation deepspeed fairscale
	$(FRAMEWORKS_PIP) -e '.[accelerate,deepspeed,fairscale,lightning,mlflow,tensorboard,wandb]' \
	  trl torch_geometric nbclient ipykernel flask flask-cors graphene huey \
	  'ray[train]' docker docstring_parser pyre-extensions tabulate
	$(FRAMEWORKS_PIP) --no-deps torchx
	$(FRAMEWORKS_PIP) --no-deps --target $(FRAMEWORKS_VENV)/images torchvision timm
	@touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS_VENV) $(CUDA_VENV) $(TOOLS_VENV) .venv-torch-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
