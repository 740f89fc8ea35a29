# The two commands to know are `make demo` and `make test`; each works in a clean clone.
# JOBS bounds parallel compilation, TEST_JOBS parallel tests; nproc heeds OMP_NUM_THREADS, which
# is not meant for them.
CORES := $(shell env -u OMP_NUM_THREADS nproc)
JOBS ?= $(CORES)
TEST_JOBS ?= $(CORES)
PYTHON = .venv/bin/python
DYNATRAIN = build/dev/bin/dynatrain

export OMP_NUM_THREADS ?= 1
.PHONY: build demo test bench validate format sanitize setup clean

build: setup
	@[ -f build/dev/build.ninja ] || cmake --preset dev
	@cmake --build --preset dev -j $(JOBS)

setup:
	@scripts/setup.sh

demo: build
	@scripts/demo-text.sh
	@$(PYTHON) scripts/demo.py --dynatrain $(DYNATRAIN)

test: build
	@ctest --preset dev -j $(TEST_JOBS)

bench: build
	@$(PYTHON) scripts/bench.py --dynatrain $(DYNATRAIN)
	@$(PYTHON) scripts/bench_planner.py --build build/dev

validate: build
	@scripts/demo-text.sh
	@$(PYTHON) scripts/validate.py --dynatrain $(DYNATRAIN)

format: setup
	@scripts/format.sh

# The torch-free folders under ASan + UBSan and under TSan.
sanitize: setup
	@for preset in asan tsan; do \
	  { [ -f build/$$preset/build.ninja ] || cmake --preset $$preset; } && \
	  cmake --build --preset $$preset -j $(JOBS) && \
	  ctest --preset $$preset -L fast -j $(TEST_JOBS) || exit 1; \
	done

clean:
	@rm -rf build
