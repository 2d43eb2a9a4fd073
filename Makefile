# The verbs of this checkout. `make help` lists them; each works on a fresh machine and prepares what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
ONCE ?=
ARGS ?=

.PHONY: help environment programs demo demo-down test test-gpu lint format types imports generate verify lock docs dist \
	e2e-kind bench bench-cpu bench-demo bench-http bench-operator bench-engine-host bench-report clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

environment: ## create or refresh .venv from the pinned requirements (every verb does this by itself)
	@scripts/environment.sh

programs: environment ## find or build the control plane's programs, with progress (demo and test do this by themselves)
	@$(BIN)/octavo-localcluster programs --with-kwok

demo: environment ## start a local cluster and stream a real answer from a real model (ONCE=1 ends after it)
	@$(BIN)/python scripts/demo.py $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

demo-down: environment ## stop the demo's cluster and remove all of it
	@$(BIN)/python scripts/demo.py --down

test: lint types imports verify programs ## every check and every test that needs no GPU (ARGS="-k word" narrows)
	@$(BIN)/python scripts/run_tests.py $(ARGS)

test-gpu: ## the kernels' and the engine's tests on a CUDA device
	@scripts/test_gpu.sh $(ARGS)

lint: environment ## ruff: rules and format
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "lint: not formatted as above; 'make format' mends it" >&2; exit 1; }
	@echo "lint: clean"

format: environment ## rewrite the sources as lint wants them
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

types: environment ## mypy, strict
	@$(BIN)/mypy

imports: environment ## the layers: who may import whom
	@told=$$($(BIN)/lint-imports --no-logo) || { echo "$$told"; exit 1; }; tail -n 1 <<<"imports: $${told##*Contracts: }"

generate: environment ## rewrite the generated files: CRDs, the chart's copies, tables in docs
	@$(BIN)/python scripts/generated.py --write

verify: environment ## fail when a generated file differs from its source
	@$(BIN)/python scripts/generated.py

docs: environment ## the documentation site, built strictly into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "docs: build/site/index.html; to read it: $(BIN)/python -m http.server --directory build/site"

lock: environment ## resolve requirements/*.txt anew from the packages' pyproject.toml
	@scripts/lock.sh

bench: bench-cpu bench-demo bench-http bench-operator bench-report ## every measurement that needs no GPU, then the report

bench-cpu: environment ## the server beside llama.cpp on this machine's CPU
	@$(BIN)/python benchmarks/serving_cpu.py $(ARGS)

bench-demo: environment ## how long the demo's stages take
	@$(BIN)/python scripts/demo.py --once --record

bench-http: environment ## what the HTTP side costs: tokens a second, added latency, 5,000 streams
	@$(BIN)/python benchmarks/http_overhead.py $(ARGS)

bench-operator: environment ## 200 InferenceServices at once on simulated nodes
	@$(BIN)/python benchmarks/operator_scale.py $(ARGS)

bench-engine-host: environment ## what a step of the engine costs its host, on a device that computes nothing
	@$(BIN)/python benchmarks/engine_host.py $(ARGS)

bench-report: environment ## tables of all results, those short of their goal first → docs/performance.md
	@$(BIN)/python benchmarks/report.py

dist: environment ## build a release into dist/: wheels, chart, images' context, CRDs, checksums (the same bytes each time)
	@$(BIN)/python scripts/dist.py $(ARGS)

e2e-kind: environment ## build the images and try chart and model on a kind cluster (wants docker, kind, TORCH_INDEX)
	@scripts/e2e_kind.sh

clean: ## remove what the verbs made here: the demo, .venv and caches (not the built programs' cache)
	@if [ -x $(BIN)/octavo-localcluster ]; then $(BIN)/python scripts/demo.py --down; fi
	@rm -rf build/site dist .venv .venv-triton36 .venv.lock .state .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
