# make             set up .venv and run the study in config.yaml
# make setup       set up .venv only (PYTHON=python3.12 picks the interpreter of a new one)
# make test        the tests that need no GPU, no container and no browser
# make lint        formatting, lint and types
# make lock        write the locks again (LOCK=--upgrade takes newer versions)
# make remeasure   measure some runs again: STATUS=disturbed, COMPARISON=vit-b128, or both
# make help        these lines
# ARGS="…" is handed on to Snakemake or pytest.

PYTHON ?= python3
UV_VERSION := 0.13.9

bin := .venv/bin
# The rules call python3 and halfstep by name, whether or not .venv is activated.
in_venv := PATH="$(CURDIR)/$(bin):$$PATH"
snakemake := $(in_venv) $(bin)/snakemake --cores 1 $(ARGS)
install := $(bin)/uv pip install --quiet --compile-bytecode --python $(bin)/python
compile := $(bin)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := study
.PHONY: study setup test lint lock remeasure help

study: setup
	@$(snakemake)

setup: .venv/.train
	@:

# A file's tests in one worker, for its fixtures cost more than its tests; those of the workflow first, which take longest.
# A thread each: where all cores have a worker, more of torch's would only wait for each other.
test: .venv/.dev .venv/.validator
	@$(in_venv) OMP_NUM_THREADS=1 $(bin)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
	    -m "not gpu and not image and not slurm and not browser and not interpreter" $(ARGS)

lint: .venv/.dev
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/snakefmt --check Snakefile rules
	$(bin)/mypy src
	@# every lint counts but the one that asks for a container per rule: collecting and reporting run on the host
	@lints=$$($(in_venv) $(bin)/snakemake --lint 2>&1 | grep -e '^ *\* ' -e 'Error' | grep -v 'Specify a conda environment or container'); \
	if [ -n "$$lints" ]; then $(in_venv) $(bin)/snakemake --lint; exit 1; fi; echo "snakemake --lint: nothing"

lock: .venv/.uv-$(UV_VERSION)
	$(compile) pyproject.toml -o requirements.lock
	$(compile) pyproject.toml --extra train -c requirements.lock -o requirements-train.lock
	$(compile) pyproject.toml --extra train --extra dev -c requirements-train.lock -o requirements-dev.lock
	$(compile) docker/requirements-build.in -c requirements-train.lock -o docker/requirements-build.lock
	$(compile) --no-deps docker/requirements-te.in -c requirements-train.lock -o docker/requirements-te.lock
	$(compile) tests/validator/requirements.in -o tests/validator/requirements.lock

remeasure:
	@$(if $(STATUS)$(COMPARISON),:,echo "Say which runs: make remeasure STATUS=disturbed, or COMPARISON=vit-b128, or both." >&2; exit 2)
	@$(MAKE) --no-print-directory setup
	@runs=$$($(in_venv) $(bin)/halfstep runs $(if $(STATUS),--status "$(STATUS)") $(if $(COMPARISON),--comparison "$(COMPARISON)")) || exit; \
	if [ -z "$$runs" ]; then echo "No run matches, so nothing is measured again."; \
	else $(snakemake) --forcerun $$runs; fi

help:
	@sed -n 's/^# \(make\|ARGS\)/\1/p' Makefile

# Each stamp lies inside .venv: removing .venv starts anew, and a changed lock is installed again.
.venv/.uv-$(UV_VERSION):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	echo "halfstep needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is not one: name another, as in make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up .venv"
	@$(PYTHON) -m venv .venv
	@$(bin)/python -m pip install -qq --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

.venv/.train: requirements-train.lock pyproject.toml .venv/.uv-$(UV_VERSION)
	@echo "Installing $< (5 GB the first time)"
	@$(install) --require-hashes -r $<
	@$(install) --no-deps -e .
	@touch $@

.venv/.dev: requirements-dev.lock .venv/.train
	@echo "Installing $<"
	@$(install) --require-hashes -r $<
	@touch $@

# The public validator of RO-Crates, in an environment of its own.
.venv/.validator: tests/validator/requirements.lock .venv/.uv-$(UV_VERSION)
	@$(bin)/python -m venv --without-pip .venv/validator
	@$(bin)/uv pip install --quiet --python .venv/validator/bin/python --require-hashes -r $<
	@touch $@
