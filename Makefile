# One command to learn, one to test. Needs only make and Python 3.11 to 3.14; everything else goes into .venv.
# LAB_FLAGS adds options to JupyterLab, e.g. make lab LAB_FLAGS="--no-browser --port 9000".

BIN := .venv/bin
# JupyterLab refuses to run as root unless told; in a container one often is, and it listens on loopback only.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help lab test env clean

help:
	@echo "make lab     open the course in JupyterLab (the first time: builds .venv, some minutes)"
	@echo "make test    ruff, the tests, and every notebook from top to bottom"
	@echo "make env     only build .venv"
	@echo "make clean   remove .venv and caches"
	@echo
	@echo "While .venv is built:  CPU=1  PyTorch's small CPU build, where there is no NVIDIA GPU"
	@echo "                       PYTHON=/path/to/python3.12  another Python than the first that fits"

# Trusted, because JupyterLab hides drawings and players of notebooks that it does not know until they are run.
lab: env
	@$(BIN)/jupyter-trust notebooks/*.ipynb >/dev/null
	@$(BIN)/python -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$(CURDIR)" \
		--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(AS_ROOT) $(LAB_FLAGS)

test: env
	$(BIN)/python -m ruff check .
	$(BIN)/python -m pytest tests
	$(BIN)/python -m pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=120 notebooks

# Done in a moment when .venv is up to date. Any Python 3 can say what is missing; setup_env.py finds one that fits.
env:
	@for python in "$(PYTHON)" python3 python3.13 python3.12 python3.11 python3.14; do \
		if "$$python" -c "" 2>/dev/null; then exec "$$python" setup_env.py; fi; \
	done; \
	echo "There is no python3 here. Install Python 3.11 to 3.14 (python.org, brew, apt) and run make again." >&2; exit 1

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
