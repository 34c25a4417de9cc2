# The only way in: a virtual environment made with pip from the constraints file.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
DEV := $(VENV)/.dev
# make quickstart TORCH_INDEX=ADDRESS takes torch, and what it needs, from another package index: see docs/howto/install.md
TORCH := $(if $(TORCH_INDEX),-i $(TORCH_INDEX)) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
SUPPORTED := (3, 11) <= v <= (3, 13) or sys.exit("Paribus needs Python 3.11 to 3.13; this is %d.%d. Name another: make PYTHON=..." % v)

.PHONY: help quickstart setup check lint test test-slow test-fast test-mutants test-faults test-fuzz test-guided test-runners test-conformance vllm test-vllm trl test-trl test-verl test-wandb test-clusters test-dashboards test-compose test-wheel test-lowest test-pythons test-debian newest release site audit audit-secrets docs health gpu gpu-pack clean
help: # list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18
	@echo 'benchmarks: make -C benchmarks'

# torch goes first and alone: asked for together with others, pip may pick a build with CUDA. The downloads are large, so
# pip shows them
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; $(SUPPORTED)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[train,mlflow,figures,dashboard]"
	@touch $@

$(DEV): $(BASE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[data,math,notebook,s3,search,tensorboard]" --group dev
	@touch $@

setup: $(DEV) # make .venv with everything that the targets below need

quickstart: $(BASE) ## run the quickstart study on two CPU cores and print its report
	$(BIN)/paribus run ablations/studies/quickstart.yaml

check: lint test test-slow ## what every change must pass

lint: $(DEV) ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

health: $(DEV) ## judge healthy and sick courses, and print how often `paribus health` is right: writes docs/reference/health.md
	@$(MAKE) --no-print-directory -C benchmarks courses

gpu: ## equality, speed and memory on one NVIDIA GPU, no network needed: benchmarks/README.md; MINUTES=5 a script, OUT, SCRIPTS, GPU_PYTHON
	@$(MAKE) --no-print-directory -C benchmarks gpu

gpu-pack: $(DEV) ## gather the wheels for a machine with a GPU and without a network; PYTHON_VERSION=3.12
	@$(MAKE) --no-print-directory -C benchmarks gpu-pack

audit-secrets: $(DEV) # what looks like a secret in the tracked files; needs no network
	$(BIN)/python tests/repo/audit.py secrets

AUDIT := .audit-venv
$(AUDIT)/.installed: $(MAKEFILE_LIST)
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet "pip-audit==2.10.1"
	@touch $@

audit: audit-secrets $(AUDIT)/.installed ## secrets in the files, and known vulnerabilities of the pinned packages
	$(AUDIT)/bin/python tests/repo/audit.py packages

# one file's tests in one process: they share what is expensive to make
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder
test: $(DEV) ## the ordinary test suite, two files at a time; JOBS=N
	$(PYTEST) -m "not slow" --durations 20

test-slow: $(DEV) ## the tests that take more than four seconds: whole studies, tutorials, kills; JOBS=N
	$(PYTEST) -m slow --durations 20

FAST := yaml_file recipe study stats health run_folder rpc monitor cli
test-fast: $(DEV) ## the tests without processes, servers and training, in under a minute
	$(PYTEST) -q -m "not slow" $(addprefix tests/unit/,$(FAST))

test-mutants: $(DEV) ## break each guard of the store and each formula of the objective: a test must notice; MUTANTS=N at a time, PARTS=N one in N
	$(BIN)/python tests/mutation/guards.py --jobs $(or $(MUTANTS),2) --parts $(or $(PARTS),1)
	$(BIN)/python tests/mutation/objective.py --jobs $(or $(MUTANTS),2) --parts $(or $(PARTS),1)

test-faults: $(DEV) ## kill processes, servers and clusters, then audit; SHORT=1, SEED=N, MINUTES=N, FAULTS="..."
	PYTHONPATH=tests $(BIN)/python -m faults.main --seed $(or $(SEED),0) --minutes $(or $(MINUTES),30) $(if $(SHORT),--short,--page) $(FAULTS)

# parts of `make test` and `make test-slow`, by themselves; TRL's own environment is test-trl's
RUNNERS := $(addprefix tests/unit/,command trl verl testing native/test_native_runner_conforms.py) tests/integration/test_runner_page.py
test-runners: $(DEV) ## what every runner passes, and how failed runs of each kind end; TRL in its environment: test-trl
	$(PYTEST) -rs $(RUNNERS)

# what `make test` reads a few hundred of
FUZZED := tests/fuzz tests/unit/run_folder/test_any_bytes.py tests/unit/archive/test_archives.py
test-fuzz: $(DEV) ## damaged files of every kind, and requests of the dashboard; N=100000 inputs a kind, SEED=N
	PARIBUS_DAMAGED_FILES=$(or $(N),20000) PARIBUS_DAMAGE_SEED=$(or $(SEED),0) OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest $(FUZZED) -k "any or damage or rows" -n $(or $(JOBS),2) --timeout 0 -p no:cacheprovider --durations 0 -rP

# atheris has wheels for few Pythons, 3.11 among them; the readers, and what they need, are those of .venv
GUIDED := .guided-venv
$(GUIDED)/.installed: tests/fuzz/requirements.txt $(DEV)
	$(PYTHON) -m venv $(GUIDED)
	$(GUIDED)/bin/python -m pip install --quiet --requirement tests/fuzz/requirements.txt
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > "$$($(GUIDED)/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	@touch $@

test-guided: $(GUIDED)/.installed ## atheris on each reader and schemathesis on the server; SECONDS=60 each, SEED=N, KINDS="..."
	PYTHONPATH=tests $(GUIDED)/bin/python -m fuzz.schema --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(GUIDED)/bin/python -m fuzz.guided --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(KINDS)

CONFORMANCE := .conformance-venv
$(CONFORMANCE)/.installed: tests/conformance/requirements.txt tests/conformance/requirements-verl.txt constraints.txt
	$(PYTHON) -m venv $(CONFORMANCE)
	$(CONFORMANCE)/bin/python -m pip install $(TORCH)
	$(CONFORMANCE)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/conformance/requirements.txt
	$(CONFORMANCE)/bin/python -m pip install --quiet --no-deps --requirement tests/conformance/requirements-verl.txt
	$(CONFORMANCE)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

test-conformance: $(CONFORMANCE)/.installed ## compare the objective with the code of TRL and verl
	PYTHONPATH=tests $(CONFORMANCE)/bin/python -m pytest tests/conformance
	PYTHONPATH=tests $(CONFORMANCE)/bin/python -m conformance.page

# in the same environment: it has verl, and what composes its configuration
test-verl: $(CONFORMANCE)/.installed ## verl's own configuration under the overrides of every level, on a CPU
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(CONFORMANCE)/bin/python -m pytest tests/with_verl -rs

# vLLM wants older packages than constraints.txt has. Its CPU build asks for parts of PyTorch that text needs none of
VLLM := .vllm-venv
$(VLLM)/.installed: constraints-vllm.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install $(TORCH)
	$(VLLM)/bin/python -m pip install --quiet --no-deps --requirement constraints-vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

vllm: $(VLLM)/.installed ## make .vllm-venv, an environment with vLLM for CPUs: docs/howto/vllm.md

test-vllm: $(VLLM)/.installed ## whole runs that sample with vLLM, on a CPU
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/with_vllm -rs

# what `paribus runners install trl` makes, in the checkout, with pytest
TRL := .environments
$(TRL)/.installed: runners/paribus_runners/trl/requirements.lock $(DEV)
	PARIBUS_ENVIRONMENTS=$(TRL) $(BIN)/paribus runners install trl $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))
	for python in $(TRL)/trl-*/bin/python; do $$python -m pip install --quiet --constraint constraints.txt pytest pytest-timeout; done
	@touch $@

trl: $(TRL)/.installed # make TRL's environment for the tests

test-trl: $(TRL)/.installed ## runs that TRL trains, on a CPU, and its traps
	OMP_NUM_THREADS=1 PYTHONPATH=platform:runners:tests $(TRL)/trl-*/bin/python -m pytest tests/with_trl/inside -rs
	OMP_NUM_THREADS=1 PARIBUS_ENVIRONMENTS=$(abspath $(TRL)) $(BIN)/python -m pytest tests/with_trl --ignore tests/with_trl/inside -rs

WANDB := .wandb-venv
$(WANDB)/.installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(WANDB)
	$(WANDB)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[wandb]" pytest pytest-timeout
	@touch $@

test-wandb: $(WANDB)/.installed ## the files of W&B, read and uploaded by its own program to a server on this machine
	$(WANDB)/bin/python -m pytest tests/with_wandb -rs

# the packages are Debian's; the daemons lie in /usr/sbin
SLURM := slurmctld slurmd slurm-client munge
RAY := $(VENV)/.ray
$(RAY): $(DEV)
	@PATH="$$PATH:/usr/sbin"; for p in munged slurmctld slurmd sbatch; do command -v $$p > /dev/null || missing=1; done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && apt-get install -y -q --no-install-recommends $(SLURM); } \
	  || echo "Slurm is missing, so its tests are skipped: apt-get install $(SLURM)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]"
	@touch $@

test-clusters: $(RAY) ## the engines on real Ray and Slurm clusters on this machine; installs Ray, and as root Slurm
	$(BIN)/python -m pytest tests/clusters -rs --durations 20

# the browser is Debian's: Playwright's own comes from a server that is no package registry
BROWSER := $(VENV)/.browser
$(BROWSER): $(DEV) tests/dashboards/requirements.txt
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q --no-install-recommends chromium; } \
	  || echo "Chromium is missing, so the tests with it are skipped: apt-get install chromium"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement tests/dashboards/requirements.txt
	@touch $@

test-dashboards: $(BROWSER) ## every page in Chromium, also as an offline file; PICTURES=docs/images keeps pictures
	$(BIN)/python -m pytest tests/dashboards -rs $(if $(PICTURES),--pictures $(PICTURES))

test-compose: $(DEV) ## the compose file in containers: as root on Debian, with podman and Docker Compose; KEEP=1 keeps images; CONTAINERS=mounted: PyTorch from .venv; CONTAINERS=0: as processes
	@mkdir -p build/compose
	@test "$$(id -u)" != 0 -o "$(CONTAINERS)" = 0 || bash tests/compose/packages.sh build/compose \
	  || echo "Containers need packages of Debian, so the services are started as processes: see build/compose/apt.log"
	PYTHONPATH=tests CONTAINERS=$(CONTAINERS) $(BIN)/python -m pytest tests/compose -rs -s

# what reads files that a wheel could lack: presets, studies, templates, recorded hashes, migrations
SHIPPED := $(addprefix tests/unit/,recipe study cli report/test_report_formats.py native/test_fingerprint.py store/test_store_migrations.py)
# what a new user types in the first hour
FIRST_HOUR := clip_grid or own_lines or taken_apart or share_a_study or other_names
PYTHONS ?= python3.11 python3.12 python3.13
test-wheel: $(DEV) ## build sdist and wheel, and run tests against the installed wheel; PYTHONS="..." tries it bare with each
	rm -rf dist build/full build/away # test-compose keeps its programs in build, too
	$(BIN)/python -m hatchling build -t sdist -t wheel
	tests/acceptance/pythons.sh wheel $(PYTHONS)
	$(PYTHON) -m venv build/full
	build/full/bin/python -m pip install --quiet --no-deps dist/*.whl
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > "$$(build/full/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	mkdir build/away && cp -r tests pyproject.toml build/away/
	cd build/away && ../full/bin/python -m pytest -q -m "not slow" -p no:cacheprovider $(SHIPPED)
	cd build/away && ../full/bin/python -m pytest -q -p no:cacheprovider tests/acceptance/test_first_hour.py -k "$(FIRST_HOUR)"

LOWEST := .lowest-venv
$(LOWEST)/.installed: pyproject.toml tests/repo/bounds.py
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv packaging pytest pytest-timeout pytest-xdist hypothesis httpx2
	$(LOWEST)/bin/python tests/repo/bounds.py lowest $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --requirement $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

# torch, and the hub's client, are no part of what is held at its oldest
NEWER := $(addprefix --ignore tests/unit/,recipe/test_trainer_names.py study/test_study_lint.py)
test-lowest: $(LOWEST)/.installed ## the tests without training, with the oldest packages that pyproject.toml admits
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n $(or $(JOBS),2) --dist loadfile -q -m "not slow" -p no:cacheprovider \
	$(NEWER) $(addprefix tests/unit/,$(FAST))

newest: $(LOWEST)/.installed ## name the packages whose newest release pyproject.toml leaves out; never fails for one
	$(LOWEST)/bin/python tests/repo/bounds.py newest

test-pythons: $(DEV) ## wheel and tests without training with each of PYTHONS="python3.12 python3.13" on the path; TORCH_INDEX
	rm -rf dist && $(BIN)/python -m hatchling build -t wheel
	tests/acceptance/pythons.sh wheel $(PYTHONS)
	TORCH="$(TORCH)" tests/acceptance/pythons.sh units $(filter-out python3.11,$(PYTHONS))

test-debian: $(DEV) # the wheel with Python 3.13, in a bare Debian 13: as root, with mmdebstrap
	rm -rf dist && $(BIN)/python -m hatchling build -t wheel
	@command -v mmdebstrap > /dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q --no-install-recommends mmdebstrap; }
	tests/acceptance/other_python.sh trixie 3.13

release: $(DEV) ## check, tag and build a version, and print what publishes it: VERSION=1.2.3
	.ci/release $(VERSION)

docs: $(DEV) ## write docs/reference from the code; needs no network
	$(BIN)/python docs/generate.py

SITE := .site-venv
$(SITE)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@

site: $(SITE)/.installed ## the documentation as a site in build/site; PARIBUS_REPOSITORY=ADDRESS: where links to the code lead
	$(SITE)/bin/python docs/site.py
	$(SITE)/bin/zensical build --strict --clean

screenshots: $(BROWSER) # pictures of the quickstart's report for docs/images
	$(BIN)/python docs/screenshots.py reports/quickstart/report.html

clean: # remove the environments and builds, but not your runs
	rm -rf $(VENV) $(CONFORMANCE) $(VLLM) $(TRL) $(AUDIT) $(WANDB) $(LOWEST) $(SITE) $(GUIDED) .python3.*-venv dist build .pytest_cache .mypy_cache .ruff_cache
	$(MAKE) --no-print-directory -C benchmarks clean
