# The task runner: `make help`. Everything works from a virtual environment (`python3 -m venv .venv && . .venv/bin/activate`).
.DEFAULT_GOAL := help
.PHONY: help install develop test full contract soak core lint format types generate bench sdist ci clean
PYTHON ?= python
BUILD_TOOLS = eval "$$($(PYTHON) build_backend/llama_batch_build.py)"

help: ## What there is to make
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: ## Build and install into the current virtual environment
	$(PYTHON) -m pip install .

develop: ## The same, editable, with all that tests and linters take
	$(PYTHON) -m pip install -e ".[test]" -r tools/requirements.txt

test: ## All tests with reduced counts: core in seconds, then Python with a real model
	cargo test --no-default-features
	$(PYTHON) -m pytest

full: ## All tests with full counts
	cargo test --no-default-features
	$(BUILD_TOOLS) && cargo test --release --no-default-features --features llama -- --include-ignored
	LLAMA_BATCH_FULL=1 $(PYTHON) -m pytest -m "slow or not slow"

contract: ## Frameworks that talk to OpenAI, each installed by itself, against the server and in process
	$(PYTHON) tools/contract.py --keep .contract

soak: ## Half an hour of clients that come and vanish
	$(PYTHON) benches/soak.py --minutes 30

core: ## The loop of seconds: core, simulated backend and engine, without llama.cpp and Python
	cargo clippy --all-targets --no-default-features -- -D warnings
	cargo test --no-default-features

lint: ## All that reads the tree without running it
	cargo fmt --check
	cargo clippy --all-targets --no-default-features -- -D warnings
	$(BUILD_TOOLS) && cargo clippy --release --all-targets -- -D warnings
	ruff check . && ruff format --check .
	$(PYTHON) tools/tidy.py
	cargo-deny check --hide-inclusion-graph licenses bans sources

format: ## Rewrite what the formatters would
	cargo fmt
	ruff check --fix . && ruff format .

types: ## mypy, and the stub against the compiled module
	mypy
	$(PYTHON) -m mypy.stubtest llama_batch._core

generate: ## Rewrite the files that are generated from tables
	$(PYTHON) tools/gen_options.py
	$(PYTHON) tools/gen_compat.py

bench: ## plan and apply (criterion), then tokens per second against llama.cpp's own bench
	cargo bench --no-default-features
	$(PYTHON) benches/throughput.py

sdist: ## A source distribution, checked
	$(PYTHON) tools/sdist.py dist

ci: ## What CI runs, from a clean clone's point of view
	bash .ci/run

clean: ## Remove what builds leave behind
	cargo clean
	rm -rf dist python/llama_batch/_core*.so python/llama_batch/cpu-features.txt
