# The only way in: a virtual environment made with pip from the constraints file.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: help quickstart test check lint docs setup wheel benchmark benchmark-scheduler benchmark-scheduler-quick benchmark-series benchmark-series-quick coverage health conformance mutants faults engines same-tables dashboards benchmark-dashboard benchmark-dashboard-quick screenshots health-runs clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install everything that the other targets need

# torch goes first and alone: asked for together with others, pip may pick a build with CUDA
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,mlflow,figures,search,dashboard]" --group dev
	@touch $@

quickstart: $(STAMP) ## run the quickstart study on two CPU cores and print its report
	$(BIN)/paribus run ablations/studies/quickstart.yaml

# one file's tests in one process: they share what is expensive to make
test: $(STAMP) ## the ordinary test suite, two files at a time; JOBS=N
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile

lint: $(STAMP) ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## write docs/reference from the code
	$(BIN)/python docs/generate.py

screenshots: $(STAMP) ## pictures of the quickstart's report for docs/images; needs Chromium
	$(BIN)/python docs/screenshots.py reports/quickstart/report.html

check: lint test ## everything that a change must pass

wheel: $(STAMP) ## build sdist and wheel, and run the tests against the installed wheel
	rm -rf dist build
	$(BIN)/python -m hatchling build -t sdist -t wheel
	$(PYTHON) -m venv build/bare
	build/bare/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	$(BIN)/python tests/acceptance/installed_wheel.py build/bare/bin/paribus
	$(PYTHON) -m venv build/full
	build/full/bin/python -m pip install --quiet --no-deps dist/*.whl
	$(BIN)/python -c "import site; print(site.getsitepackages()[0])" > "$$(build/full/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	mkdir build/away && cp -r tests pyproject.toml build/away/
	cd build/away && ../full/bin/python -m pytest -m "not slow" -p no:cacheprovider tests/unit/recipe tests/unit/study tests/unit/cli tests/unit/report tests/unit/native tests/unit/store/test_store_migrations.py

TRL := .benchmark-venv
$(TRL)/.installed: benchmarks/requirements-trl.txt constraints.txt
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet "torch==$(TORCH)"
	$(TRL)/bin/python -m pip install --quiet --requirement benchmarks/requirements-trl.txt
	@touch $@

# twice as fast is what we measure at least; the bound leaves room for a noisy machine
benchmark: $(STAMP) $(TRL)/.installed ## speed against TRL's GRPOTrainer; what objective and metrics cost
	$(BIN)/python benchmarks/native_vs_trl.py --trl-python $(TRL)/bin/python --at-least 1.8
	$(BIN)/python benchmarks/objective_cost.py --below 0.1

PEERS := .scheduler-venv
$(PEERS)/.installed: benchmarks/requirements-scheduler.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/requirements-scheduler.txt
	@touch $@

benchmark-scheduler: $(STAMP) $(PEERS)/.installed ## scale of the store at 100,000 runs, beside Optuna and Ray Tune
	$(BIN)/python benchmarks/scheduler.py --peers $(PEERS)/bin/python --growth-below 2 --rdb-at-least 5

benchmark-scheduler-quick: $(STAMP) ## the same with small studies and no peers, in a minute
	$(BIN)/python benchmarks/scheduler.py --quick --growth-below 2.5

benchmark-series: $(STAMP) ## metric series beside JSON lines; the report of 1,000 runs x 10,000 steps; needs 3 GB of disk
	$(BIN)/python benchmarks/rollups.py --ratio-above 20 --seconds-below 10 --gb-below 2

benchmark-series-quick: $(STAMP) ## the same with 100 runs x 2,000 steps, ratios alone
	$(BIN)/python benchmarks/rollups.py --quick --ratio-above 10 --gb-below 2

coverage: $(STAMP) ## what the intervals of a report cover, simulated: writes docs/reference/statistics.md
	$(BIN)/python benchmarks/coverage.py

DOCTORS := .health-venv
$(DOCTORS)/.installed: benchmarks/requirements-health.txt
	$(PYTHON) -m venv $(DOCTORS)
	$(DOCTORS)/bin/python -m pip install --quiet --requirement benchmarks/requirements-health.txt
	@touch $@

health: $(STAMP) $(DOCTORS)/.installed ## false alarms and detection of the detectors, beside other tools: writes into docs/reference/health.md
	$(BIN)/python benchmarks/health.py --peers $(abspath $(DOCTORS))/bin/python

health-runs: $(STAMP) ## real runs with a fault built in, and without: each is named, writes into docs/reference/health.md; SHORT=1: a minute, writes nothing
	$(BIN)/python benchmarks/health_runs.py $(if $(SHORT),--short,--page)

mutants: $(STAMP) ## remove each guard of the store, falsify each formula of the objective in turn: tests must see every one
	$(BIN)/python tests/mutation/guards.py
	$(BIN)/python tests/mutation/objective.py

faults: $(STAMP) ## break real processes, databases and clusters, and audit; SHORT=1: few trials, SEED=N, MINUTES=N, FAULTS="..."
	PYTHONPATH=tests $(BIN)/python -m faults.main --seed $(or $(SEED),0) --minutes $(or $(MINUTES),30) $(if $(SHORT),--short,--page) $(FAULTS)

CONFORMANCE := .conformance-venv
$(CONFORMANCE)/.installed: tests/conformance/requirements.txt tests/conformance/requirements-verl.txt constraints.txt
	$(PYTHON) -m venv $(CONFORMANCE)
	$(CONFORMANCE)/bin/python -m pip install --quiet "torch==$(TORCH)"
	$(CONFORMANCE)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/conformance/requirements.txt
	$(CONFORMANCE)/bin/python -m pip install --quiet --no-deps --requirement tests/conformance/requirements-verl.txt
	$(CONFORMANCE)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

conformance: $(CONFORMANCE)/.installed ## the objective against the real functions of TRL and verl
	PYTHONPATH=tests $(CONFORMANCE)/bin/python -m pytest tests/conformance
	PYTHONPATH=tests $(CONFORMANCE)/bin/python -m conformance.page

# the packages are Debian's; the daemons lie in /usr/sbin
SLURM := slurmctld slurmd slurm-client munge
engines: $(STAMP) ## the engines on real clusters made on this machine; installs Ray, and as root Slurm
	@PATH="$$PATH:/usr/sbin"; for p in munged slurmctld slurmd sbatch; do command -v $$p > /dev/null || missing=1; done; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && apt-get install -y -q --no-install-recommends $(SLURM); } \
	  || echo "Slurm is missing, and its tests are skipped: apt-get install $(SLURM)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ray]"
	$(BIN)/python -m pytest tests/clusters -rs

same-tables: $(STAMP) ## the quickstart on this machine, on Ray and on Slurm (as `make engines` installs them): one table; 15 minutes
	PATH="$$PATH:/usr/sbin" PYTHONPATH=tests $(BIN)/python tests/clusters/same_tables.py ablations/studies/quickstart.yaml

# the browser is Debian's: Playwright's own comes from a server that is no package registry
BROWSER := $(VENV)/.browser
$(BROWSER): $(STAMP) tests/dashboards/requirements.txt
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q --no-install-recommends chromium; } \
	  || echo "Chromium is missing, and the tests with it are skipped: apt-get install chromium"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement tests/dashboards/requirements.txt
	@touch $@

dashboards: $(BROWSER) ## every page of the dashboard in Chromium, also as an offline file; PICTURES=docs/images keeps pictures
	$(BIN)/python -m pytest tests/dashboards -rs $(if $(PICTURES),--pictures $(PICTURES))

benchmark-dashboard: $(BROWSER) ## the dashboard of 1,000 runs x 10,000 steps: pages, zoom, 50 viewers, memory; needs 3 GB of disk
	$(BIN)/python benchmarks/dashboard.py

benchmark-dashboard-quick: $(BROWSER) ## the same with 100 runs x 2,000 steps and 10 viewers, in a minute
	$(BIN)/python benchmarks/dashboard.py --quick

clean: ## remove what the targets made, but not your runs
	rm -rf $(VENV) $(TRL) $(PEERS) $(DOCTORS) $(CONFORMANCE) dist build .pytest_cache .mypy_cache .ruff_cache
