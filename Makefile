# Two commands on a fresh machine with git, make and Python 3.11 or later: `make train`, `make test`.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
TOOLS := $(VENV)/.ready-dev
SITE := $(VENV)/.ready-docs
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Two tests at a time, with one thread each: most of their time is imports, and some wait for servers.
PYTEST := pytest
TESTS := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses=2 --dist=loadfile

.PHONY: train test test-system test-all durations lint check up down bench lock setup site images

train: $(READY)  ## set up, and run the main job
	@ratchet train

test: $(TOOLS)  ## set up, and run the quick tests
	@$(TESTS) -m "not slow and not system"

test-system: $(TOOLS)  ## tests of whole commands and real servers
	@$(TESTS) -m "system and not slow"

# Three at a time, because slow tests often wait for servers. Not reordered: tests/durations.json decides which are first.
test-all: $(TOOLS)  ## all tests, as CI runs them
	@$(TESTS) --numprocesses=3 --no-loadscope-reorder $(OPTIONS)

durations: OPTIONS := --record-durations
durations: test-all  ## all tests, and record in tests/durations.json how long each file takes

lint: $(TOOLS)  ## format, lint, types, layers
	ruff format --check .
	ruff check .
	mypy
	lint-imports

check: lint test  ## what must pass before a commit

up: $(READY)  ## start Prefect server, MLflow server and a worker
	@ratchet up

down: $(READY)  ## stop them
	@ratchet down

setup: $(READY)

# uv installs the lock in seconds where pip takes minutes; uv itself comes from the lock, hash and all.
$(READY): requirements.txt pyproject.toml
	@echo "setting up $(VENV) from requirements.txt (once)"
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/# via/p' requirements.txt > $(VENV)/uv.txt
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements.txt
	@uv pip install --quiet --python $(VENV) --no-deps --no-build-isolation --editable .
	@touch $@

# What only tests and checks need, on top: production has none of it.
$(TOOLS): $(READY) requirements-dev.txt
	@echo "adding the tools of requirements-dev.txt to $(VENV) (once)"
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements-dev.txt
	@touch $@

# What only the site needs: the Markdown pages are read without it.
$(SITE): $(READY) requirements-docs.txt
	@echo "adding the site generator of requirements-docs.txt to $(VENV) (once)"
	@uv pip install --quiet --python $(VENV) --require-hashes -r requirements-docs.txt
	@touch $@

site: $(SITE)  ## the documentation as a site in dist/site, with search; a broken link is an error
	@python docs/site/build.py

images: $(TOOLS)  ## take the screenshots of docs/images again, from a real run; needs Chromium, takes minutes
	python docs/images/make.py

bench: $(READY)  ## measure what is claimed; see bench/run.py (leave the machine alone meanwhile)
	python -m bench.run $(BENCH)

COMPILE := uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --quiet
lock:  ## resolve pyproject.toml into requirements.txt, -dev.txt, -ray.txt and -docs.txt; pins that still fit stay
	$(COMPILE) --group setup pyproject.toml --output-file requirements.txt
	$(COMPILE) --group dev --constraints requirements.txt --output-file requirements-dev.txt
	for extra in ray docs; do \
		sed -n "s/^$$extra = \[\"\(.*\)\"\].*/\1/p" pyproject.toml | $(COMPILE) --constraints requirements.txt - --output-file requirements-$$extra.txt || exit 1; \
	done
