# Everything a developer runs. Each target first makes `.venv`, once.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo "$$python"; break; }; done)
WORKERS ?= 2
TESTS ?= tests
ARGS ?=

RUN := .venv/bin/python
# The stamp names the folder: an editable install is bound to it, a moved checkout installs again.
STAMP := .venv/installed-$(shell pwd | cksum | cut -d ' ' -f 1)

unexport PYTHONHOME PYTHONPATH

.PHONY: help install demo test check bench clean

help:
	@echo "make demo    train a small GPT on real text, eager and Lynx side by side"
	@echo "make test    run the suite                 (TESTS=path, ARGS=options of pytest)"
	@echo "make check   formatter, linter, type checker"
	@echo "make bench   measure"
	@echo "make clean   remove the environment and what tools left behind"

install: $(STAMP)

$(STAMP): pyproject.toml requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; set PYTHON=..." >&2; exit 1; }
	@echo "installing into .venv"
	@rm -f .venv/installed-*
	@"$(PYTHON)" -m venv .venv
	@$(RUN) -m pip install --quiet --constraint requirements/dev.txt --editable '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(RUN) examples/train_gpt.py $(ARGS)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist worksteal \
		-m "not slow and not gpu" $(TESTS) $(ARGS)

check: $(STAMP)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m tests.tools.check_types

bench: $(STAMP)
	$(RUN) -m benchmarks.suite $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info dumps .pytest_cache .mypy_cache .ruff_cache .hypothesis
