# make setup       the environment (.venv), versions from constraints.txt
# make quickstart  trains and compares three agents, in runs/quickstart; continues where it was
# make test        lint, types, import rules, all tests
# make unit        the quick unit tests, before every commit: without those marked slow, and with fewer random examples
# make snippets    runs the code that README and docs show, and counts what needs a GPU, the hub … (tests/snippets.py);
#                  ARGS="--minutes 60" also what says that it takes an hour
# make cuda        the tests of a GPU; all others hide it
# make integration tests with real vLLM servers, in TRL's and verl's trainers, on a Ray, with clients of
#                  `retcon serve-agent` and with verifiers and OpenEnv, in environments of their own; OpenHands
#                  among these clients where there is a Python 3.12. Its parts: integration-clients, -environments,
#                  -tasksets, -trl, -verl, -vllm, -openhands; `make -k integration` goes on after a part that failed
# make newest      the quick tests with the newest releases of torch, transformers, TRL, peft, openai and others, in a
#                  fresh environment; says what broke
# make verl-resolve  pip resolves the environment of recipes/verl/requirements.txt; needs a package index
# make figures     the tables of README and docs anew, from the results in benchmarks/results; says which are stale
# make mutants     tests the tests: do they notice faults? (docs/develop/testing.md)
# make goldens     writes anew what Retcon does, as values and hashes (tests/golden); make goldens-compare BASE=COMMIT
#                  compares this tree with a commit instead, weights to the bit
# make base        makes the base model inside the package anew (under an hour)
PYTHON ?= python3.11
# the first that runs: on PATH (a shim of pyenv may not), of pyenv, of uv
PYTHON312 ?= $(firstword $(foreach python,python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python \
	$(HOME)/.local/share/uv/python/cpython-3.12*/bin/python3.12),$(shell $(python) -c 'import sys; print(sys.executable)' 2>/dev/null)))
VENV := .venv
CORE := .venv-core
VLLM := .venv-vllm
TRL := .venv-trl
CLIENTS := .venv-clients
ENVIRONMENTS := .venv-environments
TASKSETS := .venv-tasksets
VERL := .venv-verl
OPENHANDS := .venv-openhands
BIN := $(VENV)/bin
INSTALL := -m pip --disable-pip-version-check install --quiet
PIP := $(INSTALL) --constraint constraints.txt

.PHONY: setup quickstart test lint types imports tests unit unit-records unit-rest snippets cuda integration openhands newest verl-resolve \
	figures mutants goldens goldens-compare base clean integration-clients integration-environments integration-tasksets integration-trl \
	integration-verl integration-vllm integration-openhands

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) torch==2.13.0
	$(BIN)/python $(PIP) --editable '.[train,report,serve,sandbox,grade,formats,gguf,dev]'
	@touch $@

# The same package without its extras: what must work without torch is tested there.
$(CORE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python $(PIP) --editable .
	@touch $@

quickstart: setup
	$(BIN)/retcon quickstart $(ARGS)

test: lint types imports tests

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: setup
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks/*.py benchmarks/studies/*.py

imports: setup
	$(BIN)/lint-imports

tests: setup $(CORE)/.ready
	RETCON_CORE_PYTHON=$(CORE)/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --durations=10 $(ARGS)

# Two processes, each with its half: workers of xdist would both collect all, and both import torch. Bytecode is kept, files
# are in memory where there is a place for them, and no thread watches each test, beside its timeout.
UNIT := RETCON_EXAMPLES=10 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= TMPDIR=$(firstword $(wildcard /dev/shm) /tmp) \
	$(BIN)/python -m pytest -m "not slow" -o faulthandler_timeout=0 -o tmp_path_retention_count=1
OF_RECORDS := $(addprefix tests/unit/,chat demos evaluate purify rollout tasks transcripts)

unit: setup
	@$(MAKE) --no-print-directory -j 2 unit-records unit-rest

unit-records:
	@$(UNIT) $(OF_RECORDS) $(ARGS)

unit-rest:
	@$(UNIT) tests/unit $(addprefix --ignore ,$(OF_RECORDS)) $(ARGS)

snippets: setup
	$(BIN)/python tests/snippets.py $(ARGS)

cuda: setup
	RETCON_CUDA_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cuda $(ARGS)

# vLLM's CPU build, for which requirements.txt has all that it needs: hence no dependencies.
$(VLLM)/.ready: tests/real/requirements.txt tests/pinned.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(INSTALL) --no-deps --requirement $<
	$(VLLM)/bin/python tests/pinned.py check $<
	@touch $@

# Retcon with some extras and what the file names, in versions of the file, which has all that constraints.txt has not, and
# of constraints.txt.
define pinned
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python tests/pinned.py merge constraints.txt $< >$(@D)/pins.txt
	$(@D)/bin/python $(INSTALL) --constraint $(@D)/pins.txt torch==2.13.0
	$(@D)/bin/python $(INSTALL) --constraint $(@D)/pins.txt --editable '.[$(EXTRAS)]' --requirement $<
endef

$(TRL)/.ready: EXTRAS := train
$(TRL)/.ready: tests/plugins/requirements.txt pyproject.toml constraints.txt tests/pinned.py
	$(pinned)
	$(@D)/bin/python tests/pinned.py check $(@D)/pins.txt
	@touch $@

$(CLIENTS)/.ready: EXTRAS := train,serve,gguf
# rlms without its clients for other models' servers: only its prompts are read.
$(CLIENTS)/.ready: tests/plugins/clients.txt pyproject.toml constraints.txt tests/pinned.py
	$(pinned)
	$(@D)/bin/python $(INSTALL) --no-deps rlms==0.1.3
	$(@D)/bin/python tests/pinned.py check $(@D)/pins.txt rlms==0.1.3
	@touch $@

$(ENVIRONMENTS)/.ready: EXTRAS := train,sandbox
$(ENVIRONMENTS)/.ready: tests/plugins/environments/environments.txt pyproject.toml constraints.txt tests/pinned.py
	$(pinned)
	$(@D)/bin/python tests/pinned.py check $(@D)/pins.txt
	@touch $@

$(TASKSETS)/.ready: EXTRAS := train,sandbox
$(TASKSETS)/.ready: tests/plugins/environments/tasksets.txt pyproject.toml constraints.txt tests/pinned.py
	$(pinned)
	$(@D)/bin/python tests/pinned.py check $(@D)/pins.txt
	@touch $@

# verl declares older versions than it works with: hence without its dependencies, which the file has.
$(VERL)/.ready: EXTRAS := train,grade,formats,serve,sandbox
$(VERL)/.ready: tests/plugins/requirements-verl.txt pyproject.toml constraints.txt tests/pinned.py
	$(pinned)
	$(@D)/bin/python $(INSTALL) --no-deps verl==0.9.1
	$(@D)/bin/python tests/pinned.py check $(@D)/pins.txt verl==0.9.1
	@touch $@

# Whether the environment for GPUs of docs/training/verl.md still resolves, and to what its file pins: nothing is installed.
verl-resolve:
	$(PYTHON) -m venv build/verl-resolve
	build/verl-resolve/bin/python $(INSTALL) --upgrade pip
	build/verl-resolve/bin/python $(INSTALL) --dry-run --report build/verl-resolve/report.json \
		--requirement recipes/verl/requirements.txt --editable '.[train,grade,sandbox,formats,serve]'
	$(PYTHON) tests/pinned.py report build/verl-resolve/report.json recipes/verl/requirements.txt

# OpenHands without Retcon, as that speaks to it over HTTP; the file has all that it needs: hence no dependencies.
$(OPENHANDS)/.ready: tests/plugins/requirements-openhands.txt tests/pinned.py
	$(PYTHON312) -m venv $(OPENHANDS)
	$(OPENHANDS)/bin/python $(INSTALL) --no-deps --requirement $<
	$(OPENHANDS)/bin/python tests/pinned.py check $<
	@touch $@

openhands: setup $(OPENHANDS)/.ready
	RETCON_INTEGRATION=1 RETCON_OPENHANDS_PYTHON=$(OPENHANDS)/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/plugins/test_openhands.py $(ARGS)

OF_TASKSETS := tests/plugins/environments/test_verifiers_tasksets.py

integration: integration-clients integration-environments integration-tasksets integration-trl integration-verl \
	integration-vllm integration-openhands

integration-clients: setup $(CLIENTS)/.ready
	RETCON_INTEGRATION=1 OMP_NUM_THREADS=1 $(CLIENTS)/bin/python -m pytest tests/plugins/test_clients.py tests/plugins/test_harnesses.py tests/plugins/test_rlms.py $(ARGS)
	$(CLIENTS)/bin/python tests/snippets.py docs/models/serving.md --with PyPI

integration-environments: setup $(ENVIRONMENTS)/.ready
	RETCON_INTEGRATION=1 OMP_NUM_THREADS=1 $(ENVIRONMENTS)/bin/python -m pytest tests/plugins/environments --ignore $(OF_TASKSETS) $(ARGS)
	$(ENVIRONMENTS)/bin/python tests/snippets.py docs/training/environments.md

integration-tasksets: setup $(TASKSETS)/.ready
	RETCON_INTEGRATION=1 OMP_NUM_THREADS=1 $(TASKSETS)/bin/python -m pytest $(OF_TASKSETS) $(ARGS)
	$(TASKSETS)/bin/python tests/snippets.py docs/training/environments.md

integration-trl: setup $(TRL)/.ready
	RETCON_INTEGRATION=1 TRL_EXPERIMENTAL_SILENCE=1 OMP_NUM_THREADS=1 $(TRL)/bin/python -m pytest tests/plugins/test_trl.py tests/plugins/test_trl_records.py $(ARGS)
	TRL_EXPERIMENTAL_SILENCE=1 $(TRL)/bin/python tests/snippets.py docs/training/trl.md

integration-verl: setup $(VERL)/.ready
	RETCON_INTEGRATION=1 OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest tests/plugins/test_verl.py tests/plugins/test_ray_servers.py $(ARGS)

integration-vllm: setup $(VLLM)/.ready
	RETCON_VLLM_PYTHON=$(VLLM)/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/real $(ARGS)
	$(BIN)/python tests/snippets.py docs/models/engines.md

integration-openhands: setup
	@if [ -n "$(PYTHON312)" ]; then $(MAKE) openhands PYTHON312=$(PYTHON312); \
	else echo "left out: OpenHands, whose SDK needs Python 3.12: none was found; name one with PYTHON312=…"; fi

newest:
	$(PYTHON) tests/newest.py .venv-newest $(ARGS)

figures: setup
	$(BIN)/python benchmarks/figures.py $(ARGS)
	@$(BIN)/python benchmarks/figures.py --stale

# In a copy, in build/mutants, where what was found is kept: the same command goes on.
mutants: setup
	$(BIN)/python $(PIP) --editable '.[mutants]'
	$(BIN)/python tests/mutation/mutants.py $(ARGS)

goldens: setup
	$(BIN)/python tests/golden/make.py $(ARGS)

goldens-compare: setup
	$(BIN)/python tests/golden/make.py --base $(BASE) $(ARGS)

base: setup
	$(BIN)/python benchmarks/base_model.py $(ARGS)

clean:
	rm -rf $(VENV) $(CORE) $(VLLM) $(TRL) $(CLIENTS) $(ENVIRONMENTS) $(TASKSETS) $(VERL) $(OPENHANDS) .venv-newest build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
