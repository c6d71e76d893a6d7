# `make help` lists the targets. Each installs what it needs into .venv.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help: ## list the targets
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# `make train` installs what training needs, every other target all that the tests need.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hydrl needs Python 3.11 or newer. Write make PYTHON=python3.12 TARGET.")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing into .venv; the first time this downloads several gigabytes and takes some minutes.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(1)'
endef

.venv/train: pyproject.toml
	$(call install,)
	@touch $@

.venv/ready: pyproject.toml
	$(call install,[dev])
	@touch .venv/train $@

train: .venv/train ## train PPO on the inverted double pendulum; takes a minute
	$(BIN)/python train.py algo=ppo env=inverted_double_pendulum

test: .venv/ready ## run the fast tests; about 35 minutes on two cores
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: .venv/ready ## run the slow tests (does it learn, does it survive a kill); two hours; parts=FILE for one; resumable
	$(BIN)/python tests/slow.py $(parts)

# Beside .venv, as dm-control needs MuJoCo 3. mo-gymnasium's pygame would write over pygame-ce.
FAMILIES := .venv-families/bin/python
.venv-families/ready: pyproject.toml
	test -x $(FAMILIES) || $(PYTHON) -m venv .venv-families
	$(FAMILIES) -m pip install --quiet --disable-pip-version-check pytest pytest-xdist pytest-timeout \
		--editable '.[atari,dm-control,envpool,jax,minatar,minigrid,pettingzoo,report,robotics,vmas]'
	$(FAMILIES) -m pip install --quiet --disable-pip-version-check --no-deps 'mo-gymnasium==1.3.*'
	@touch $@

test-families: export HYDRL_FAMILIES := all
test-families: export MUJOCO_GL ?= egl
test-families: .venv-families/ready ## compare every family of environments with its raw simulator; ten minutes on two cores
	$(FAMILIES) -m pytest -n auto -m 'slow or not slow' tests/envs/families

lint: .venv/ready ## check style, formatting, spelling and the imports between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache

format: .venv/ready ## fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: .venv/ready ## check types
	$(BIN)/mypy

docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv/ready ## build the documentation into outputs/site
	$(BIN)/mkdocs build --quiet --strict --config-file scripts/docs/mkdocs.yml
	@echo 'outputs/site/index.html; with its search: python -m http.server -d outputs/site'

.venv/bench: .venv/ready pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

dashboard: export TRACKIO_DIR ?= outputs/trackio
dashboard: export TRACKIO_PLOT_ORDER ?= eval/return_mean,train/return,eval/*,train/*,loss/*
dashboard: export HF_HUB_OFFLINE ?= 1
dashboard: .venv/ready ## show runs with logger=trackio in the browser; Ctrl-C stops it
	$(BIN)/trackio show --project hydrl

bench: .venv/bench ## compare frames per second with Stable-Baselines3, plain PyTorch and TorchRL's tutorial
	$(BIN)/python scripts/benchmark

results: .venv/ready ## run the experiments of docs/results.md; hours; rows=ppo-cartpole for one row; resumable
	$(BIN)/python scripts/results.py $(filter-out PYTHON=%,$(MAKEOVERRIDES))

.PHONY: help train test test-slow test-families lint format type dashboard docs bench results
