# make demo   three devices, the same sentences        make test   what must hold before a commit
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PY := .venv/bin/python
DEVICE ?= all
PYTEST_ARGS ?=
RUFF = $(PY) -m ruff check --quiet --output-format concise .
MYPY = $(PY) -m mypy --no-error-summary
# Two workers of one BLAS thread each: the tests are many and small. Bytecode is kept, whatever the environment says:
# many tests start programs of their own.
TEST_ENV := RLX_REQUIRE_VULKAN=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test late test-all judges check conformance onnx-suite mutation shaders bench docs notebooks venv
help:
	@echo "make demo         embed sentences on every device here and compare them with the float64 reference"
	@echo "make test         lint, types, shipped shaders, tests (installs a software Vulkan driver if there is none)"
	@echo "make test-all     the same with nothing left out: every combination of parameters, three times the examples"
	@echo "make late         tests that \`make test\` leaves out and CI runs: a second Vulkan driver, faults, examples, more on Vulkan"
	@echo "make judges       every reference and gradient, and ONNX files, beside torch, SciPy, ONNX Runtime (installs them)"
	@echo "make check        lint and types only"
	@echo "make conformance  every case on every device but software drivers (DEVICE=cpu|vulkan|cuda picks one); an interrupted run resumes"
	@echo "make mutation     faults planted in the kernels, one after the other: which conformance case notices each"
	@echo "make onnx-suite   onnx's own cases on the CPU and Vulkan; fails where anything but the listed ones does not pass"
	@echo "make shaders      compile the GLSL sources to the SPIR-V that the wheel ships"
	@echo "make docs         the site, by Sphinx, into .cache/docs; any warning fails"
	@echo "make notebooks    the tutorials as Jupyter notebooks, into out/notebooks"
	@echo "make bench        rlx beside onnxruntime and torch"

venv:
	@tools/venv.sh dev

demo:
	@tools/venv.sh cpu,hf
	@$(PY) examples/demo.py

check: venv
	@echo "check: ruff"
	@$(RUFF)
	@echo "check: mypy"
	@$(MYPY)

# What make test leaves out of the suite is marked in it: tests/full.py.
test-all: export RLX_TEST_FULL = 1
test-all: test

# mypy reads NumPy's types on one core for half a minute where it has no cache: it runs beside the tests, and speaks last.
test: venv
	@echo "test: ruff"
	@$(RUFF)
	@tools/system.sh vulkan swiftshader layers glslang cxx
	@echo "test: shipped SPIR-V against its sources"
	@$(PY) shaders/build.py --check
	@echo "test: pytest, and mypy beside it"
	@types=$$(mktemp); $(MYPY) >$$types 2>&1 & mypy=$$!; trap 'kill $$mypy 2>/dev/null || true; rm -f $$types' EXIT; \
	status=0; $(TEST_ENV) $(PY) -m pytest -q -n 2 --dist worksteal $(PYTEST_ARGS) || status=$$?; \
	wait $$mypy || { status=1; echo "test: mypy"; cat $$types; }; exit $$status

late: venv
	@tools/system.sh vulkan swiftshader layers glslang cxx browser
	@$(TEST_ENV) $(PY) -m pytest -q -n 2 --dist worksteal -m late $(PYTEST_ARGS)

judges: venv
	@tools/venv.sh judges
	@tools/system.sh vulkan
	@RLX_REQUIRE_JUDGES=1 RLX_TEST_FULL=1 $(TEST_ENV) $(PY) -m pytest -q -n 2 --dist worksteal -m "judged and not cuda and not download" $(PYTEST_ARGS)

conformance: venv
	@$(PY) -m rlx.conformance --device $(DEVICE)

mutation: venv
	@tools/system.sh vulkan glslang cxx
	@OMP_NUM_THREADS=1 $(PY) -m tests.mutation

onnx-suite: venv
	@$(TEST_ENV) $(PY) -m rlx.onnx.suite --device cpu --device vulkan --sets tests/onnx/data/suite-classes.json --expect tests/onnx/data/not-passing.json --docs docs/onnx.md
	@$(TEST_ENV) $(PY) -m tests.onnx.light cpu vulkan

# Other environments than .venv: make docs DOCS_PY=python3
DOCS_PY ?= $(PY)
docs-venv:
	@[ "$(DOCS_PY)" != "$(PY)" ] || tools/venv.sh docs

docs: docs-venv
	@$(DOCS_PY) -m sphinx -W --keep-going -q -b html -d .cache/docs/.trees docs .cache/docs
	@echo "docs: .cache/docs/index.html"

notebooks: docs-venv
	@$(DOCS_PY) docs/site/notebooks.py out/notebooks
	@echo "notebooks: out/notebooks"

shaders: venv
	@tools/system.sh glslang
	@$(PY) shaders/build.py

bench:
	@tools/venv.sh bench
	@$(PY) benchmarks/networks/contenders.py
