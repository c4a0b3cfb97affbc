# make demo     make a virtual environment if there is none, install, run every example on this machine
# make test     the tests that every push runs: long families of cases are sampled by the day (tests/sampling.py)
# make test-all every test; those that need a GPU are skipped where there is none
# make test-matrix  the tests under Python 3.11 to 3.14, as far as they are installed (TESTS="tests/ir -x" narrows it)
# make coverage the tests once more, slower, with the lines that they run by package into docs/coverage.md
# make lint     ruff, ruff format, mypy
# make trials   the hard trials of the cache: 32 processes, 1000 kills, 20 hash seeds (minutes)
# make test-gpu only the tests that need a GPU
# make measure  the GPU tests, then every race against its rivals, into out/measured (half an hour on a GPU)
# make sanitize compute-sanitizer over the examples and the library, on a GPU
# make ptx-record  whether the recorded kernels still compile to the PTX that was recorded (minutes)
# make docs     the documentation site, into out/site
# make fuzz     hours of it: 100,000 clean runs, 20,000 random kernels, 5,000 programs of the host, 100,000 broken texts of IR, every mutant; goes on where it was stopped
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

# Workers and the Python processes that tests start share bytecode, in out/, whether or not the user
# has Python write any: without it each of them compiles tkc anew.
export PYTHONPYCACHEPREFIX := $(CURDIR)/out/bytecode
unexport PYTHONDONTWRITEBYTECODE

.PHONY: docs ptx-record demo test test-all test-matrix coverage trials test-gpu measure sanitize fuzz lint clean

demo: $(VENV)/.installed
	$(BIN)/tkc demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test-all: $(VENV)/.installed
	TKC_TEST_SEED=all $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test-matrix:
	$(PYTHON) -m tests.matrix -n $(JOBS) $(TESTS)

coverage: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(JOBS) --cov=tkc --cov-report=json:out/coverage.json $(TESTS)
	$(BIN)/python docs/coverage_table.py out/coverage.json

trials: $(VENV)/.installed
	$(BIN)/python -m benchmarks.trials

test-gpu: $(VENV)/.installed
	TKC_TEST_SEED=all $(BIN)/python -m pytest -q -m gpu -n $(JOBS) --dist worksteal

measure: $(VENV)/.installed
	$(BIN)/python -m benchmarks.campaign --out out/measured

sanitize: $(VENV)/.installed
	$(BIN)/python -m tests.gpu.sanitize

fuzz: $(VENV)/.installed
	$(BIN)/python -m tkc.fuzz $(FUZZ)

lint: $(VENV)/.installed
	$(BIN)/ruff check tkc tests examples benchmarks docs
	$(BIN)/ruff format --check -q tkc tests examples benchmarks docs
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tkc needs Python 3.11 or newer; run make PYTHON=python3.12 demo"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	touch $@

ptx-record: $(VENV)/.installed
	$(BIN)/python -m tests.ptx_record

docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python docs/build_site.py

clean:
	rm -rf out build dist *.egg-info
