# Every target works in a fresh clone; `make` alone lists them.

PYTHON ?= python3
PYTEST_ARGS ?=
WORKERS ?= auto
ROUNDS ?= 20
SEEDS ?= 20000
VENV_PYTHON := .venv/bin/python
PYTEST := $(VENV_PYTHON) -m pytest --durations=15
PYTEST_PARALLEL := $(PYTEST) -n $(WORKERS) --dist loadfile
INTEROP_TARGET := tests/interop/target
MATRIX_REPORT := .cache/security-matrix.xml
MATRIX_PAGE := docs/reference/security-matrix.md

export PYTHON
# Tests start hundreds of processes, each of which would compile all modules again. `make clean` deletes the cache.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check test battery fuzz interop pulsar interop-full bench bench-java bench-recover bench-tls bench-autorecovery explore soak soak-autorecovery faults demo lock dist site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## build .venv from requirements.txt, if it is not current
	@scripts/setup.sh

check: setup ## check format, lint, types and layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/mypy scripts/demo.py scripts/terminal_picture.py
	.venv/bin/mypy -m scripts.settings_page -m scripts.doctor_page -m scripts.commands_page -m scripts.metrics_page -m scripts.audit_report_page -m scripts.security_matrix_page -m scripts.site_pages
	.venv/bin/lint-imports --no-cache
	.venv/bin/mkdocs build --strict

site: setup ## build the documents with a search, in build/site
	.venv/bin/mkdocs build --strict
	@echo "open build/site/index.html; for the search: python3 -m http.server --bind 127.0.0.1 --directory build/site"

dist: setup ## build the wheel and the sdist, in dist
	rm -rf dist
	$(VENV_PYTHON) -m build --no-isolation --outdir dist

test: setup ## unit tests, and tests with real processes on this machine (PYTEST_ARGS=..., WORKERS=1)
	$(PYTEST_PARALLEL) -m "not interop and not battery" $(PYTEST_ARGS)

battery: setup ## the long part of the tests: most cuts and damages, kill loops, outages, the demo
	$(PYTEST_PARALLEL) -m "battery and not interop" $(PYTEST_ARGS)

fuzz: setup ## every property test ROUNDS times, with new random examples each time; a failure prints how to repeat it
	$(PYTEST) -n $(WORKERS) -m hypothesis --hypothesis-profile=default --property-rounds=$(ROUNDS) $(PYTEST_ARGS)

interop: setup ## tests with Apache BookKeeper (Java); needs a JDK and Maven
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.interop.class_archives
	$(PYTEST_PARALLEL) -m "interop and not battery" tests/interop $(PYTEST_ARGS)

pulsar: setup ## a real Pulsar broker on bkctl's bookies, and on a mixed cluster; gets 230 MB from Maven Central
	@scripts/build_pulsar.sh
	$(PYTEST) tests/interop/test_pulsar.py $(PYTEST_ARGS)

interop-full: pulsar ## every Java client on our bookies; every mode of security on Java's bookies and ours, with the page of the results
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.interop.class_archives
	@rm -f $(MATRIX_REPORT); status=0; \
	$(PYTEST) -n $(WORKERS) --dist load tests/interop/test_client_matrix.py $(PYTEST_ARGS) || status=$$?; \
	$(PYTEST) -n $(WORKERS) --dist load --junitxml=$(MATRIX_REPORT) tests/interop/test_security_*.py $(PYTEST_ARGS) || status=$$?; \
	$(VENV_PYTHON) -m scripts.security_matrix_page $(MATRIX_PAGE) $(MATRIX_REPORT) && exit $$status

explore: setup ## SEEDS random schedules of commands and faults on a simulated cluster (EXPLORE_ARGS="--first 300")
	$(VENV_PYTHON) -m tests.sim.explorer --seeds $(SEEDS) $(EXPLORE_ARGS)

soak: setup ## ROUNDS recoveries while processes are killed and halted, each checked from outside (SOAK_ARGS="--seed 7")
	$(VENV_PYTHON) -m tests.soak --rounds $(ROUNDS) $(SOAK_ARGS)

soak-autorecovery: setup ## the same with two autorecovery daemons instead of commands
	$(VENV_PYTHON) -m tests.soak --autorecovery --rounds $(ROUNDS) $(SOAK_ARGS)

faults: setup ## faults of disks, clocks, limits and ZooKeeper under load; what is lost (FAULTS_ARGS="--only journal")
	$(VENV_PYTHON) -m tests.soak.faults $(FAULTS_ARGS)

bench: setup ## adds per second and latency of one bookie; AGAINST=REV: CPU time per add compared with another commit
	$(VENV_PYTHON) -m tests.bench$(if $(AGAINST),.add_cost --against $(AGAINST)) $(BENCH_ARGS)

bench-java: setup ## adds and reads of one bookie, bkctl's and Java's in one run (BENCH_ARGS="--only add")
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.bench.java_bookies $(BENCH_ARGS)

bench-recover: setup ## recovery of a dead bookie on Java bookies, by bkctl and by Java's shell (BENCH_ARGS="--only tiny")
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.bench.recover $(BENCH_ARGS)

bench-tls: setup ## adds and recovery with TLS and in clear text, on bkctl's bookies and on Java's, in one run
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.bench.tls $(BENCH_ARGS)

bench-autorecovery: setup ## kill -9 of a Java bookie to full replication, by bkctl's and Java's daemons
	@scripts/build_interop.sh
	$(VENV_PYTHON) -m tests.bench.autorecovery $(BENCH_ARGS)

demo: setup ## cluster, kill -9, recovery, audit; leaves a report, no process
	$(VENV_PYTHON) -P scripts/demo.py $(DEMO_ARGS)

COMPILE := CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/pip-compile --quiet --generate-hashes --allow-unsafe \
	--strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

lock: setup ## write requirements.txt (everything) and requirements-run.txt from pyproject.toml (newest versions, all hashes)
	$(COMPILE) --upgrade --extra dev --extra spark --output-file requirements.txt pyproject.toml
	$(COMPILE) --upgrade --constraint requirements.txt --output-file requirements-run.txt pyproject.toml

.PHONY: settings-page
settings-page: setup
	$(VENV_PYTHON) -m scripts.settings_page > docs/reference/settings.md.new
	mv docs/reference/settings.md.new docs/reference/settings.md

.PHONY: commands-page
commands-page: setup
	$(VENV_PYTHON) -m scripts.commands_page > docs/reference/commands.md.new
	mv docs/reference/commands.md.new docs/reference/commands.md

.PHONY: doctor-page
doctor-page: setup
	$(VENV_PYTHON) -m scripts.doctor_page > docs/reference/metadata-doctor.md.new
	mv docs/reference/metadata-doctor.md.new docs/reference/metadata-doctor.md

.PHONY: audit-page
audit-page: setup
	$(VENV_PYTHON) -m scripts.audit_report_page > docs/reference/audit-report.md.new
	mv docs/reference/audit-report.md.new docs/reference/audit-report.md

.PHONY: metrics-page
metrics-page: setup
	$(VENV_PYTHON) -m scripts.metrics_page > docs/reference/metrics.md.new
	mv docs/reference/metrics.md.new docs/reference/metrics.md

clean: ## delete .venv and everything that was built or cached
	rm -rf .venv .cache build dist bkctl.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
		.hypothesis $(INTEROP_TARGET) spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
