# Prism. `make help` lists what is here. Needs Python 3.11 or newer with pip; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
COMPILED := $(VENV)/.compiled
KERNEL_FILES := $(shell sed -n 's|^ *"\(.*\)",|src/prism/\1|p' src/prism/kernel_sources.py)
TORCH := $(shell grep -E '^torch==' constraints.txt)
OUT ?= out
# Python compiles a file once and keeps it, here where tests start hundreds of processes, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo quick test test-slow test-gpu load-test mutants check format docs site release bench corpus drills soak slurm-drill cluster-drill kubernetes-drill lab clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(COMPILED)  ## build .venv; then .venv/bin/prism is the command

# torch first, so that nothing else pulls in a build for GPUs that are not here.
$(DEMO_READY): pyproject.toml constraints.txt scripts/install_torch.sh scripts/install.sh
	@echo "setup: building $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup 1/3: torch, CPU build"
	@sh scripts/install_torch.sh $(BIN)/python $(TORCH)
	@echo "setup 2/3: prism"
	@sh scripts/install.sh $(BIN)/python -c constraints.txt -e '.[demo]'
	@echo "setup 3/3: compiling once what is compiled on first use"
	@$(BIN)/python scripts/compile_kernels.py tour
	@touch $@
	@echo "setup: done; the command is $(BIN)/prism"

$(READY): $(DEMO_READY)
	@echo "setup: the tools of the test suite"
	@UV_COMPILE_BYTECODE=1 sh scripts/install.sh $(BIN)/python -c constraints.txt -e '.[dev]'
	@# Compiles all test files once; workers that begin together would each do it.
	@$(BIN)/python -m pytest --collect-only -q >/dev/null || true
	@touch $@

# Again after a `git pull` that changed a kernel: workers of the suite that need it together would each compile it.
$(COMPILED): $(READY) $(KERNEL_FILES) scripts/kernels/tour.txt scripts/kernels/tests.txt
	@echo "setup: compiling once what the test suite would compile on first use"
	@$(BIN)/python scripts/compile_kernels.py tour
	@$(BIN)/python scripts/compile_kernels.py tests
	@touch $@

demo: $(DEMO_READY)  ## the tour, on an embedded example
	@$(BIN)/prism demo --output $(OUT)/demo

test: $(COMPILED)  ## the whole everyday test suite
	@# One worker more than cores: many tests wait for other processes.
	$(BIN)/python -m pytest -n $$(($$(nproc 2>/dev/null || echo 1) + 1)) --dist loadfile -m "not slow and not gpu"

quick: $(COMPILED)  ## the pure tests, for the loop of every day
	$(BIN)/python -m pytest -n $$(nproc 2>/dev/null || echo 1) --dist loadfile -m "not slow and not gpu" --quick

test-slow: $(READY)  ## tests that take minutes
	$(BIN)/python -m pytest -m "slow and not gpu"

test-gpu: $(READY)  ## tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

check: $(READY)  ## format, lint, types, import layers, sizes, words, dead code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/write_cli_docs.py --check
	$(BIN)/python scripts/write_reference.py --check
	$(BIN)/python scripts/write_serve_client.py --check
	$(BIN)/python scripts/write_diagrams.py --check
	$(BIN)/python scripts/write_figures.py --check
	$(BIN)/python scripts/check_tests.py
	$(BIN)/python scripts/check_house.py

format: $(READY)  ## rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## write the reference pages, diagrams and pictures from the code
	$(BIN)/python scripts/write_cli_docs.py
	$(BIN)/python scripts/write_reference.py --runs
	$(BIN)/python scripts/write_serve_client.py
	$(BIN)/python scripts/write_figures.py
	$(BIN)/python scripts/write_diagrams.py
	$(BIN)/python scripts/write_pictures.py
	$(BIN)/python tests/serve/remake_pictures.py docs

mutants: $(READY)  ## change the code in small ways and count how often a test notices
	$(BIN)/python proving/mutate.py

load-test: $(READY)  ## the everyday suite beside busy processes and in random orders, again and again
	sh scripts/load_runs.sh $(BIN)/python

site: $(READY)  ## build the documentation site into out/site
	$(BIN)/mkdocs build --strict --quiet --site-dir $(OUT)/site

release: $(READY)  ## build a wheel and an sdist, check them and install them into empty environments
	sh scripts/release.sh $(BIN)/python

bench: $(READY)  ## run every benchmark beside its peers, to the end; QUICK=1 for smaller inputs
	@$(BIN)/python -m proving $(if $(QUICK),--quick) --output $(OUT)/proving

corpus: $(READY)  ## make real jobs fail in every way we know, and score `prism explain` on their logs
	$(BIN)/python proving/make_corpus.py $(OUT)/corpus
	$(BIN)/python proving/benchmarks/explain_corpus.py $(OUT)/corpus
	$(BIN)/python proving/make_rank_corpus.py $(OUT)/rank-corpus
	$(BIN)/python proving/benchmarks/explain.py corpus $(OUT)/rank-corpus

cluster-drill: $(READY)  ## drills over ssh and Slurm, two hosts and a spare on this machine; needs root
	$(BIN)/python -m proving.drills.cluster_drills --launcher ssh
	$(BIN)/python -m proving.drills.cluster_drills --launcher slurm

kubernetes-drill: $(READY)  ## harm to jobs on a real Kubernetes API server (proving/drills/kube_cluster.py says what it needs)
	$(BIN)/python -m proving.drills.kubernetes_drill

drills: $(READY)  ## do harm to real training jobs in every way we know, and check that they recover
	$(BIN)/python -m proving.drills

soak: $(READY)  ## 200 random faults in trainings of 2, 4 and 8 ranks, beside torchrun --max-restarts
	$(BIN)/python -m proving.drills.soak --output $(OUT)/soak

slurm-drill: $(READY)  ## lose a node of a real Slurm on this machine (root, slurm-wlm, munge)
	$(BIN)/python -m proving.drills.slurm_drill

lab: $(READY)  ## real jobs between network namespaces, harmed and diagnosed (root, tcpdump, softflowd)
	$(BIN)/prism lab --output $(OUT)/lab

clean:  ## remove .venv and everything that was generated
	rm -rf $(VENV) $(OUT) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
