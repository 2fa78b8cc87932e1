# Short names for the jobs of CMakePresets.json and tools/setup.sh. Every target first installs what it lacks.
#   make build    the library and the command: build/release/octile and liboctile.so
#   make demo     build, then the main job: quantise, generate, compile, cache, run,
#                 verify
#   make test     build everything and run every test this machine can run; tests
#                 of many cases run a covering part. make build-tests builds alone
#   make check-fast   unit tests and programs on the C API, before a commit
#   make check    lint, the sanitizers' subsets, the fuzzers and make test with
#                 every case (OCTILE_TESTS=all)
#   make wheel    the Python package: build/wheel/octile-*.whl
#   make python   pytest on the sources, without a wheel; TESTS names files
#   make test-torch   the wheel, then installs and tests it; make test-wheel tests
#                 the wheel that is there
#   make asan-ubsan, make tsan   unit, fault and process tests under sanitizers
#   make grown    programs of earlier releases, with structs that have grown
#   make soak     processes that share a cache, break it and kill each other,
#                 SOAK_MINUTES (default 10)
#   make fuzz     clang's fuzzers over every reader, FUZZ_SECONDS each (default 10)
#   make lint     clang-format and clang-tidy; make format rewrites what
#                 clang-format would, make format-check only checks it
#   make test-page   writes a page of the shipped records and looks at it in
#                 Chromium; screenshots are left in build/page
#   make plots    redraws docs/plots/ from docs/records and the library
#   make bench-pages   writes BENCHMARKS.md from docs/records
#   make package  Debian packages, and an archive that runs where it is unpacked,
#                 in build/package/packages
#   make install  into PREFIX, by default /usr/local; make uninstall removes what
#                 was installed last
#   make clean    removes the build folders, not build/deps
#   make help     prints this list
JOBS := $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 10
PYTHON := build/deps/venv/bin/python
SOAK_MINUTES ?= 10
TESTS ?= tests/python

# Python writes its compiled files there, and none beside the sources.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

.PHONY: build demo test tests build-tests wheel python test-torch test-wheel test-page check check-fast lint format format-check install \
  uninstall package asan-ubsan tsan grown fuzz soak plots bench-pages clean help
.DEFAULT_GOAL := build

help:
	@sed -n 's/^#   //p' Makefile

# Folders of the source tree, which are not targets. Without this rule, make would say that they are up to date.
FOLDERS := $(filter-out build tests,$(patsubst %/,%,$(wildcard */)))
.PHONY: $(FOLDERS)
$(FOLDERS):
	@echo "make: $@ is a folder, not a target; make help lists the targets" >&2; exit 2

build:
	@tools/setup.sh build
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target octile octile_shared

demo:
	@tools/setup.sh build
	@echo "configuring, then compiling: three to five minutes on two cores, seconds the next time"
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target octile
	@build/release/octile demo

# ctest shows the output of failed tests only, and runs one test more than there are cores, because some wait for time
# limits. The case called here says if the GPU report is stale, which everyone is to see.
test tests: build-tests
	@build/release/tests/unit_tests --gtest_filter=*SaysWhereItIsStale --gtest_brief=1
	@ctest --preset release -j $(shell expr $(JOBS) + 1) -E '^unit.GpuReport.SaysWhereItIsStale$$'

build-tests:
	@tools/setup.sh test
	@cmake --preset release --log-level=WARNING -DOCTILE_EVERY_CELL=$(if $(filter all,$(OCTILE_TESTS)),ON,OFF)
	@cmake --build --preset release

# The wheel is built in the tree of `make build`, so that only the file that records the NVRTC is compiled twice.
# auditwheel brings in libzstd and tags what is left by the oldest C library that it runs with; PyTorch's libraries are
# PyTorch's.
wheel:
	@tools/setup.sh torch
	@rm -rf build/wheel
	@$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --config-settings build-dir=build/release --config-settings cmake.define.OCTILE_WERROR=ON \
	  --wheel-dir build/wheel/plain .
	@PATH="$(CURDIR)/build/deps/venv/bin:$$PATH" auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' \
	  --wheel-dir build/wheel build/wheel/plain/*.whl 2>build/wheel/auditwheel.log || { cat build/wheel/auditwheel.log; exit 1; }
	@rm -rf build/wheel/plain
	@ls -s -h build/wheel/*.whl

# PYTHONPATH precedes an installed package.
python:
	@tools/setup.sh torch
	@cmake --preset release --log-level=WARNING -DOCTILE_PYTHON=ON
	@cmake --build --preset release --target octile_python_package
	@PYTHONPATH=$(CURDIR)/build/release/python $(PYTHON) -m pytest $(TESTS)

# Tests run on the installed wheel, not on the sources.
test-torch: wheel
	@$(MAKE) --no-print-directory test-wheel

test-wheel:
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheel/*.whl
	@$(PYTHON) -m pytest

test-page:
	@tools/setup.sh page
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target octile
	@$(PYTHON) tests/page/browser.py --octile build/release/octile --out build/page

# Each sanitizer over the tests that run host code only. Without address randomisation (setarch -R),
# because ThreadSanitizer of GCC 12 refuses the wider one of newer kernels.
asan-ubsan tsan:
	@tools/setup.sh test
	@cmake --preset $@ --log-level=WARNING
	@cmake --build --preset $@
	@setarch -R ctest --preset $@ -j $(JOBS)

grown:
	@tools/setup.sh test
	@cmake --preset $@ --log-level=WARNING
	@cmake --build --preset $@
	@ctest --preset $@ -j $(JOBS)

fuzz:
	@tools/setup.sh fuzz
	@cmake --preset $@ --log-level=WARNING -DOCTILE_FUZZ_SECONDS=$(FUZZ_SECONDS)
	@cmake --build --preset $@
	@ctest --preset $@ -j $(JOBS)

soak:
	@tools/setup.sh test
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target octile_soak
	@build/release/tests/octile_soak --seconds $$(($(SOAK_MINUTES) * 60))

# The operators of PyTorch need its headers, which `make wheel` installs.
lint:
	@tools/setup.sh lint
	@cmake --preset lint --log-level=WARNING \
	  -DOCTILE_PYTHON=$(if $(wildcard build/deps/venv/lib/python3*/site-packages/torch),ON,OFF)
	@tools/lint.sh

format:
	@tools/setup.sh format
	@tools/lint.sh --fix

format-check:
	@tools/setup.sh format
	@tools/lint.sh --format-only

# The unit tests run in one process a core, which saves starting a thousand.
check-fast:
	@tools/setup.sh test
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target unit_tests c_api_programs
	@seq 0 $$(($(JOBS) - 1)) | GTEST_TOTAL_SHARDS=$(JOBS) OCTILE_ORACLE_PYTHON=$(CURDIR)/$(PYTHON) \
	  xargs -P $(JOBS) -I{} env GTEST_SHARD_INDEX={} build/release/tests/unit_tests --gtest_brief=1
	@ctest --preset release -j $(JOBS) -R '^(c_api\.|unit\.(compile_together|house|prose)$$)'

check: export OCTILE_TESTS = all
check: lint asan-ubsan tsan grown fuzz test

# The pictures of docs/fp8-notes.md are octile.numpy's, which is linked as a package without PyTorch's operators.
plots:
	@tools/setup.sh plots
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target octile octile_shared
	@cmake -DPACKAGE=$(CURDIR)/build/release/plots/octile -DSOURCES=$(CURDIR)/runtime/python/octile \
	  -DHEADERS=$(CURDIR)/runtime/include/octile -DLIBRARY=$(CURDIR)/build/release/liboctile.so.0 \
	  -DSONAME=liboctile.so.0 -DCOMMAND=$(CURDIR)/build/release/octile -P runtime/python/package_links.cmake
	@PYTHONPATH=$(CURDIR)/build/release/plots $(PYTHON) tools/plots/plot.py

bench-pages:
	@python3 tools/plots/pages.py

install: build
	@cmake --build --preset release --target octile_manuals
	@cmake -DBUILD=build/release "-DPREFIX=$(PREFIX)" -P tools/cmake/octile_install.cmake

uninstall:
	@cmake -DRECORD=build/release -P tools/cmake/octile_uninstall.cmake

package:
	@tools/setup.sh package
	@cmake --preset package --log-level=WARNING
	@cmake --build --preset package
	@cd build/package && cpack --config CPackConfig.cmake

clean:
	@rm -rf build/release build/package build/debug build/asan-ubsan build/tsan build/grown build/lint build/fuzz build/bare build/pycache
