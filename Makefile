# One command to learn, one to test. Needs only make and Python 3.11 to 3.14; everything else goes into .venv, and, for
# the TPU and Lightning notebooks, into .venv-xla.
# LAB_FLAGS adds options to JupyterLab, e.g. make lab LAB_FLAGS="--no-browser --port 9000".

BIN := .venv/bin
XLA_BIN := .venv-xla/bin
# The notebooks that name the kernel xla.
ON_XLA := $(shell grep -l '"name": "xla"' notebooks/*.ipynb)
# Two workers: most tests and cells wait for ranks, not for the processor. A notebook stays with one of them;
# those of eight virtual cores run one by one, because XLA ends a core that is ten seconds late.
TWO := -n 2
NBVAL := --dist loadfile --nbval-lax --nbval-current-env --nbval-cell-timeout=120
# With nothing beside it: here eight virtual cores run again and again, and a late one would be ended.
ALONE := tests/xla/test_stress.py
# JupyterLab refuses to run as root unless told; in a container one often is, and it listens on loopback only.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# What tests measure does not go to the reader's own board.
test test-xla browser: export COURSE_BOARD = 0

.PHONY: help lab test test-xla notebooks site browser badges env course clean

help:
	@echo "make lab     open the course in JupyterLab (the first time: builds .venv before, and .venv-xla behind it)"
	@echo "make test    ruff, the tests, and every notebook from top to bottom"
	@echo "make test-xla  the part of it that .venv-xla runs"
	@echo "make browser  what a reader does in JupyterLab's page, in Chromium or Chrome where there is one"
	@echo "make site    the course as web pages, in build/site"
	@echo "make env     only build .venv and .venv-xla"
	@echo "make clean   remove both and caches"
	@echo
	@echo "While they are built:  CPU=1  PyTorch's CPU build, also with an NVIDIA driver; CPU=0  the one that pip chooses"
	@echo "                       TORCH_CPU_INDEX=URL  a mirror of the index that CPU builds come from"
	@echo "                       PYTHON=/path/to/python3.12  another Python than the first that fits"
	@echo "At any time:           XLA=0  leave out .venv-xla, which only the TPU and Lightning notebooks need"

# Trusted, because JupyterLab hides drawings and players of notebooks that it does not know until they are run.
# With exec, make is the parent of what becomes JupyterLab: neither it nor the build behind it outlives make.
lab: course
	@$(BIN)/jupyter-trust notebooks/*.ipynb >/dev/null
	@exec $(BIN)/python setup_env.py lab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(AS_ROOT) $(LAB_FLAGS)

test: env
	$(BIN)/python -m ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m pytest $(TWO) tests --ignore tests/browser
	$(BIN)/python -m pytest $(TWO) $(NBVAL) $(filter-out $(ON_XLA),$(wildcard notebooks/*.ipynb))
	@if [ -e .venv-xla/ready ] && [ "$(XLA)" != 0 ]; then $(MAKE) --no-print-directory test-xla; \
		else echo "Left out: the TPU and Lightning notebooks and the tests of what they use, which need .venv-xla."; fi

# The tests that leave themselves out where torch_xla or Lightning is missing, and launch with this environment's torch.
test-xla:
	$(XLA_BIN)/python -m pytest $(TWO) $(filter-out $(ALONE),$(sort tests/ranks/test_launch.py $(wildcard tests/xla/test_*.py) \
		$(shell grep -rle 'importorskip."torch_xla' -e 'importorskip."lightning' tests)))
	$(XLA_BIN)/python -m pytest -n 1 $(NBVAL) $(ALONE) $(ON_XLA)

# JupyterLab in a real browser; its screens are kept in build/browser.
browser: course
	@if command -v chromium chromium-browser google-chrome >/dev/null; then \
		$(BIN)/python -m pip install -q -c requirements.txt -r tests/browser/requirements.txt && \
		$(BIN)/python -m pytest tests/browser; \
	else echo "Left out: the test in a browser, which needs Chromium or Chrome."; fi

# For contributors, see CONTRIBUTING.md.
notebooks: env
	$(BIN)/python tools/execute.py $(if $(ONLY),$(ONLY:%=notebooks/%.ipynb),$(sort $(wildcard notebooks/*.ipynb)))

site: course
	@$(BIN)/python -m pip install -q -c requirements.txt -r docs/requirements.txt
	$(BIN)/python -m sphinx -q -W --keep-going -E -c docs . build/site
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/site/index.html
	@echo "Open build/site/index.html"

badges: course
	@$(BIN)/python tools/badges.py $(REPO)

# Done in a moment when all is up to date. Any Python 3 can say what is missing; setup_env.py finds one that fits.
env course:
	@for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.14; do \
		if "$$python" -c "" 2>/dev/null; then exec "$$python" setup_env.py $(filter course,$@); fi; \
	done; \
	echo "There is no python3 here. Install Python 3.11 to 3.14 (python.org, brew, apt) and run make again." >&2; exit 1

clean:
	rm -rf .venv .venv-xla build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
