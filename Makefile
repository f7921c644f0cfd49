# Two commands matter on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
TEST_VENV := build/test-venv

.PHONY: demo test test-shuffled lint reliability bench bench-charts bench-diagnosis bench-faults bench-fleet bench-model bench-ship system-packages test-venv try-services clean

demo: $(VENV)/bin/trainvitals
	$(VENV)/bin/trainvitals demo

$(VENV)/bin/trainvitals: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo 'Installing trainvitals and its dependencies into $(VENV); this can take a few minutes.'
	$(VENV)/bin/pip install --quiet --editable '.[demo]'
	@touch $@

# The tests run against the wheel, as a user installs it, never against the source tree.
# Most of them wait for other processes: three at a time keep two cores busy. tests/conftest.py orders the files.
test: test-venv lint
	$(TEST_VENV)/bin/python -m pytest -p no:randomly --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The tests of each file in random order; what fails says the seed. PART=tests/journal for a part.
test-shuffled: test-venv
	$(TEST_VENV)/bin/pip install --quiet 'pytest-randomly>=4'
	$(TEST_VENV)/bin/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder $(PART)

test-venv: system-packages
	$(PYTHON) -m venv $(TEST_VENV)
	rm -rf build/wheel
	$(TEST_VENV)/bin/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(TEST_VENV)/bin/pip install --quiet --force-reinstall --no-deps build/wheel/*.whl
	wheel=$$(echo build/wheel/*.whl) && $(TEST_VENV)/bin/pip install --quiet "$$wheel[test]"
	tools/install-helm $(TEST_VENV)/bin

lint:
	$(TEST_VENV)/bin/ruff check
	$(TEST_VENV)/bin/ruff format --check
	$(TEST_VENV)/bin/mypy
	$(TEST_VENV)/bin/lint-imports

reliability:
	$(PYTHON) tests/promises.py

bench: test-venv
	$(TEST_VENV)/bin/pip install --quiet "$$(echo build/wheel/*.whl)[bench]"
	$(TEST_VENV)/bin/python benchmarks/run_all.py

# Curves of 200 runs: how soon the server has read them, and the page drawn them again.
bench-charts: test-venv
	$(TEST_VENV)/bin/python benchmarks/run_charts.py

# A fleet: what a gateway takes, what the store answers, the long storm, and a cluster whose replicas are killed. Needs
# Debian's clickhouse-server, and zookeeper for the last.
bench-fleet: test-venv
	$(TEST_VENV)/bin/python benchmarks/fleet.py
	cd tests/fleet && PYTHONPATH=..:. ../../$(TEST_VENV)/bin/python storm.py 20 100
	$(TEST_VENV)/bin/python tests/fleet/cluster.py

# The long storms: kills, sealing and disks. QUICK=--quick for a first look.
bench-faults: test-venv
	$(TEST_VENV)/bin/python benchmarks/faults.py $(QUICK)

# How many of the labelled faults the findings name, and what they say of healthy runs. SEEDS=--seeds=16 for more.
bench-diagnosis: test-venv
	$(TEST_VENV)/bin/python benchmarks/diagnosis.py $(SEEDS)

# What shipping runs to a gateway costs the agent.
bench-ship: test-venv
	$(TEST_VENV)/bin/python benchmarks/shipping.py

# Whether the verdicts of `trainvitals bench` are right, on real models.
bench-model: test-venv
	$(TEST_VENV)/bin/python benchmarks/model_bench.py

# The service on fresh systems, oldest systemd and Python first: installed, booted, asked for its page. As root, 10 minutes.
try-services:
	apt-get install -y -qq --no-install-recommends debootstrap systemd-container >/dev/null
	rm -rf build/wheel && $(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	tools/try-service debian bullseye
	tools/try-service ubuntu jammy
	tools/try-service debian bookworm
	tools/try-service ubuntu noble
	tools/try-service ubuntu noble gcp

# What the tests drive for real: a compiler for the fake GPU driver, a terminal, other people's monitors and servers.
system-packages:
	tools/install-system-packages

clean:
	rm -rf build dist .venv
