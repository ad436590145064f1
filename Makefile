# make lab      open the course in JupyterLab; the first time .venv is built before, and .venv-xla behind it
# make test     ruff, types, the tests, and every notebook from top to bottom; make test-all: and the slow tests, browser and site
# make report   run every notebook here and write what happened to build/report.md; ONLY="05 06" runs some
# make grade FOLDER=handed_in  judge the exercises of finished notebooks; make handout: notebooks without outputs, for students
# make browser  what a reader does in JupyterLab's page; make site: the course as web pages, in build/site
# make env      only build both; make course: only .venv; make clean: remove them, and caches
#
# LAB_FLAGS="--no-browser --port 9000"  options of JupyterLab
# XLA=0  leave out .venv-xla, which only the TPU and Lightning notebooks need
# CPU=1  PyTorch's CPU build, also with an NVIDIA driver; CPU=0: the one that pip chooses
# PYTHON=/path/to/python3.12  another than the first of 3.11 to 3.14; TORCH_CPU_INDEX=URL  a mirror of the CPU builds
help:
	@sed -n '/^#/!q; s/^# *\(.*\)/\1/p' Makefile

BIN := .venv/bin
LINUX := $(filter Linux,$(shell uname -s))
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
# The first of the commands $1 that is Python 3.11 or newer, and older than 3.$2.
first = $(shell for python in $1; do "$$python" -c "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, $2))" \
	2>/dev/null && echo "$$python" && break; done)
python = $(call first,$(PYTHONS),15)
xla_python = $(if $(findstring Linux x86_64,$(shell uname -sm)),$(call first,$(BIN)/python $(PYTHONS),14))

# PyTorch's CPU build, if its index answers within 3 s; it is asked for torch alone. On Linux pip's own choice brings
# gigabytes of CUDA libraries, of use with an NVIDIA driver only.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
answers = $(shell timeout 3 $(python) -c "from urllib.request import urlopen; urlopen('$(TORCH_CPU_INDEX)/torch/')" \
	2>/dev/null && echo yes)
cpu_build = $(if $(filter 1,$(CPU))$(answers),--find-links $(TORCH_CPU_INDEX)/torch/,\
	$(info $(TORCH_CPU_INDEX) does not answer: pip takes the PyTorch that it prefers, maybe with CUDA.))
cuda = $(if $(filter 1,$(CPU)),,$(filter 0,$(CPU))$(wildcard /dev/nvidiactl /usr/lib/wsl/lib/libcuda.so*))

# With an NVIDIA driver the Lightning notebook trains on GPUs from .venv, too: 23 MB more.
lightning = $(shell sed -n 's/^\(lightning==[0-9.]*\).*/\1/p' requirements-xla.txt)

# On a host with TPUs ranks use them through TorchTPU, in the release that was tried. Kernels do not load it by themselves:
# a process that has loaded it opens the TPU at a backward pass or a seed, and no other process can have it then.
tpu = $(wildcard /dev/accel0 /dev/vfio/0)
torch_tpu := torch_tpu==0.2.0
export TORCH_DEVICE_BACKEND_AUTOLOAD = 0

# One make at a time builds an environment. macOS has no flock, and nothing is built behind JupyterLab there.
alone = $(if $(LINUX),flock -n $1 true || echo "Another make is building $2; this one waits."; flock $1)
# In a session of its own, because Ctrl-C is JupyterLab's, and until the process of this shell ends, which becomes it.
behind = $(if $(LINUX),(setsid nice sh -c '{ tail -f --pid=$$0 /dev/null; kill 0; } & $(MAKE) -s env; kill 0' \
	$$$$ >>.venv/xla.log 2>&1 &);)

# An environment is ready when its stamp is. A build that was interrupted has none, and starts again from pip's cache. A
# line in a .pth file does what -e . does, three seconds sooner.
define install
	test -e $@ || $1 -m venv --clear $(@D)
	@rm -f $@
	$(@D)/bin/python -m pip install -qU pip
	$(@D)/bin/python -m pip install -r $< $2
	@$(@D)/bin/python -c "import os, sysconfig; \
		open(sysconfig.get_path('purelib') + '/course_utils.pth', 'w').write(os.getcwd())"
endef

.venv/ready: requirements.txt
	@$(if $(python),,echo "The course needs Python 3.11 to 3.14: PYTHON=/path/to/python3.13 names one." >&2; exit 1)
	$(call install,$(python),$(if $(LINUX),--no-compile $(if $(cuda),$(lightning),$(cpu_build))) $(if $(tpu),$(torch_tpu)))
	@cp -R tools/jupyter .venv/share/ && touch $@

# Byte code, torch's first: pip would make it on one core, before anybody may start.
.venv/compiled: .venv/ready
	@$(BIN)/python -m compileall -qq -j0 .venv/lib/python*/site-packages/torch .venv/lib >/dev/null || true
	@touch $@

.venv/tests: tests/requirements.txt .venv/ready
	@$(BIN)/python -m pip install -q -c requirements.txt -r $< && touch $@

.venv-xla/ready: requirements-xla.txt | .venv/ready
	$(call install,$(xla_python),$(if $(filter 0,$(CPU)),,$(cpu_build)) \
		$(if $(tpu),'torch_xla[tpu]'))
	@touch $@ && echo "PyTorch/XLA is ready."

# One that was moved, or whose Python is gone, is built again.
$(foreach env,.venv .venv-xla,$(shell test -x $(env)/bin/python && grep -qF "$(realpath $(env))" $(env)/pyvenv.cfg \
	|| rm -f $(env)/ready))

course:
	@$(call alone,requirements.txt,.venv) $(MAKE) -s .venv/ready
env: course
	@$(MAKE) -s .venv/compiled .venv/tests
	@$(if $(filter 0,$(XLA)),,$(if $(xla_python),\
		$(call alone,requirements-xla.txt,.venv-xla) $(MAKE) -s .venv-xla/ready || echo "PyTorch/XLA could not be built.",\
		echo "PyTorch/XLA is left out: it has builds for Linux on x86-64 and Python 3.11 to 3.13 only."))

# Trusted, because JupyterLab hides drawings and players of notebooks that it does not know until they are run. Kernels
# listen on sockets that only their user can open; where a socket's path would be too long, on encrypted ports. Run as
# root, as in a container, JupyterLab wants to be told; it listens on loopback only.
lab: course
	@$(BIN)/jupyter-trust notebooks/*.ipynb >/dev/null & \
	folder=$$($(BIN)/jupyter --runtime-dir); \
	[ $${#folder} -le 53 ] && kernels=transport=ipc || kernels=transport_encryption=required; \
	$(behind) exec $(BIN)/jupyter-lab --KernelManager.$$kernels --ServerApp.ip=127.0.0.1 \
		--ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS)

# Most tests and cells wait for ranks, not for the processor, so that two workers share the two cores. Tests that use one
# kernel stay with one worker, and so do the cells of a notebook. The longest notebooks go first. Eight virtual cores run
# with nothing beside them, because XLA ends a core that is ten seconds late.
TESTS := -m pytest -n 2 --dist loadgroup --ignore tests/browser
NBVAL := -m pytest -p tests.seconds --dist loadfile --no-loadscope-reorder --nbval-lax --nbval-cell-timeout=600
FIRST := notebooks/19% notebooks/22% notebooks/07% notebooks/20%
ALONE := notebooks/16% notebooks/17% notebooks/18%
XLA_THERE = $(if $(filter 0,$(XLA)),,$(shell ls .venv-xla/ready 2>/dev/null))
ON_XLA = $(shell grep -l '"name": "xla"' notebooks/*.ipynb)
NOTEBOOKS = $(filter-out $(if $(XLA_THERE),,$(ON_XLA)),$(wildcard notebooks/*.ipynb))
# The tests that leave themselves out where torch_xla or Lightning is missing; launch with that environment's torch, and
# the answers to what it judges.
XLA_TESTS = tests/ranks/test_launch.py tests/checks/test_answers.py $(shell grep -rlE 'importorskip."(torch_xla|lightning)' --include 'test_*.py' tests)
# Threads that wait for each other soon give up their core: where others use it, a small step is three times as fast.
test test-all slow: export GOMP_SPINCOUNT = 1000
# XLA then compiles in half the time: no test asks how fast its code is.
test test-all slow: export XLA_FLAGS = --xla_backend_optimization_level=0
test: env
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/ty check
	$(BIN)/python $(TESTS) tests
	$(BIN)/python $(NBVAL) -n 2 $(filter $(FIRST),$(NOTEBOOKS)) $(filter-out $(FIRST) $(ALONE),$(NOTEBOOKS))
	$(if $(XLA_THERE),$(BIN)/python $(NBVAL) $(filter $(ALONE),$(NOTEBOOKS)))
	$(if $(XLA_THERE),.venv-xla/bin/python $(TESTS) $(XLA_TESTS),\
	@echo "Left out: the TPU and Lightning notebooks and the tests of what they use, which need .venv-xla.")

test-all: test browser slow site

# Slurm, several hosts, whole scripts, the answers that take long.
slow: env
	$(BIN)/python $(TESTS) -m slow tests
	$(if $(XLA_THERE),.venv-xla/bin/python -m pytest -m slow $(XLA_TESTS))

browser: course
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || \
	{ echo "Left out: it needs Chromium or Chrome."; exit; }; \
	$(BIN)/python -m pip install -q -c requirements.txt -r tests/browser/requirements.txt && \
	$(BIN)/python -m pytest tests/browser

# Outputs are made on an idle machine: execute.py refuses on another, and a run that contradicts its notebook's claims.
notebooks: env
	$(BIN)/python tools/execute.py $(if $(ONLY),$(ONLY:%=notebooks/%.ipynb),$(sort $(wildcard notebooks/*.ipynb)))
# What the notebooks do here, for whoever has GPUs or TPUs that we lack; their files stay as they are.
report: env
	$(BIN)/python benchmarks/report.py $(ONLY)
grade: course
	@$(BIN)/python tools/grade.py "$(FOLDER)" $(if $(ALL),--all)
# As they are in the last commit, so with empty exercises.
handout: course
	@mkdir -p build/handout && git archive HEAD notebooks | tar -x -C build/handout --strip-components 1
	@$(BIN)/jupyter-nbconvert --log-level ERROR --clear-output --inplace build/handout/*.ipynb && echo build/handout
site: course
	@$(BIN)/python -m pip install -q -c requirements.txt -r docs/requirements.txt
	$(BIN)/python -m sphinx -q -W --keep-going -E -c docs . build/site
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > build/site/index.html
badges: course
	@$(BIN)/python tools/badges.py $(REPO)
clean:
	rm -rf .venv .venv-xla build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help course env lab test test-all slow browser notebooks report grade handout site badges clean
