# Every target sets up its own virtual environment first; `make demo` works as the first command ever typed.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development
DOCUMENTS := $(VENV)/.documents
SPOKEN := 'program/*.py' 'proto/*.py' 'deviceplugin/*.py' 'scheduler_ext/*.py' 'kubectl_topogpu/*.py' 'simulation/*.py' 'daemonset/*.py' 'daemonset/chart/*.yaml' 'examples/*.yaml'
SENTENCES := docs/prose program proto kubectl_topogpu daemonset simulation deviceplugin scheduler_ext benchmarks # folders whose docstrings and comments are sentences
PROTOS := proto/kubelet/deviceplugin_v1beta1.proto proto/podresources/podresources_v1.proto proto/cri/runtime_v1.proto tests/node/cri/containers.proto

# uv takes a third of the time. It reads no pip.conf: what it cannot fetch, or where it cannot be had, pip installs.
INSTALL := sh -c '$(BIN)/uv pip install --python $(BIN)/python "$$@" || $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check "$$@"' --

.PHONY: help demo test coverage fuzz test-cluster test-node test-hami test-page check vale prose workflows format stubs clean docs docs-settings docs-metrics pictures promtool manifests check-manifests image image-check kubectl-plugin version release lock

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

$(RUNTIME): pyproject.toml simulation/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "TopoGPU needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt install python3-venv" >&2; exit 1; }
	@echo "installing TopoGPU and what it needs into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
	@$(INSTALL) --editable . --editable ./simulation
	@command -v cc gcc clang > /dev/null || { echo "no C compiler here: installing one from PyPI, ziglang, for the simulated driver ..."; \
	  $(INSTALL) ziglang; }
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@echo "installing development tools into $(VENV) ..."
	@$(INSTALL) --editable '.[dev]'
	@touch $@

$(DOCUMENTS): $(RUNTIME)
	@echo "installing what builds the site into $(VENV) ..."
	@$(INSTALL) --quiet --editable '.[docs]'
	@touch $@

demo: $(RUNTIME) ## the whole path, from GPU to container, without a GPU
	@$(BIN)/topogpu-sim demo $(ARGS)

# Five also on two cores: a test waits for real programs longer than it computes.
# The tests start hundreds of programs. If this variable is set, each of them compiles all of its modules again.
test coverage: export PYTHONDONTWRITEBYTECODE :=
# They meet no public authority, whose certificates aiohttp makes each program read: a tenth of its start. The variable
# is set in the recipes alone: what is installed first is fetched from such authorities.
test: $(DEVELOPMENT) ## the test suite, in five processes
	@SSL_CERT_FILE=/dev/null $(BIN)/python -m pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: test-index
test-index: $(DEVELOPMENT) ## where a behaviour is tested, by nouns of tests' names: NOUN=lease; without, all nouns
	@$(BIN)/python -m tests.index $(NOUN)

# It takes longer than `make test`: Python 3.11 can only trace, and each law is tried with five times as many examples.
coverage: $(DEVELOPMENT) ## the test suite, and how much of the product it reaches: never less than before
	@rm -rf build/coverage && mkdir -p build/coverage
	@SSL_CERT_FILE=/dev/null $(BIN)/python -m coverage run -m pytest --hypothesis-profile thorough --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)
	@$(MAKE) --no-print-directory coverage-report

.PHONY: coverage-report
coverage-report: # what the last run of the tests reached
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

test-cluster: $(DEVELOPMENT) ## the tests against a real control plane, which Go builds once
	@$(BIN)/python -m tests.cluster.binaries $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@$(BIN)/python -m tests.cluster.coscheduling '$(KUBERNETES_RELEASE)' > /dev/null || test $$? -eq 3
	@$(BIN)/python -m tests.cluster.go_programs $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@$(BIN)/python -m tests.cluster.kueue $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@$(BIN)/python -m pytest -m cluster -rs $(ARGS)

test-node: $(DEVELOPMENT) ## the tests against a real kubelet and containerd, as root; Go builds them once
	@$(BIN)/python -m tests.cluster.binaries $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@$(BIN)/python -m tests.node.binaries '$(KUBERNETES_RELEASE)' $(NODE_RUNTIME) > /dev/null || test $$? -eq 3
	@$(BIN)/python -m pytest -m node -rs $(ARGS)

.PHONY: test-deploy
test-deploy: $(DEVELOPMENT) ## the image, built here, and the manifests on a whole cluster of one node, as root
	@$(BIN)/python -m tests.deploy.needs $(KUBERNETES_RELEASE) || test $$? -eq 3
	@if unshare --net true 2> /dev/null; then alone="unshare --net"; fi; $$alone $(BIN)/python -m pytest -m deploy -rs tests/deploy $(ARGS)

test-hami: $(DEVELOPMENT) ## the tests beside HAMi's own programs, as root; Go builds them from the checkout HAMI_SOURCE=FOLDER
	@$(BIN)/python -m tests.cluster.binaries $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@HAMI_SOURCE='$(HAMI_SOURCE)' $(BIN)/python -m tests.hami.programs > /dev/null || test $$? -eq 3
	@HAMI_SOURCE='$(HAMI_SOURCE)' $(BIN)/python -m pytest -m hami -rs tests/hami $(ARGS)

.PHONY: test-autoscaler
test-autoscaler: $(DEVELOPMENT) ## the real cluster-autoscaler beside the extender; Go builds it from the checkout AUTOSCALER_SOURCE=FOLDER
	@$(BIN)/python -m tests.cluster.binaries $(KUBERNETES_RELEASE) > /dev/null || test $$? -eq 3
	@AUTOSCALER_SOURCE='$(AUTOSCALER_SOURCE)' $(BIN)/python -m tests.autoscaler.program > /dev/null || test $$? -eq 3
	@AUTOSCALER_SOURCE='$(AUTOSCALER_SOURCE)' $(BIN)/python -m pytest -m autoscaler -rs tests/autoscaler $(ARGS)

.PHONY: test-hami-core
test-hami-core: $(DEVELOPMENT) ## HAMi-core's own library on a simulated driver, as root; built from the checkout HAMI_CORE_SOURCE=FOLDER
	@HAMI_CORE_SOURCE='$(HAMI_CORE_SOURCE)' $(BIN)/python -m tests.hami_core.programs > /dev/null || test $$? -eq 3
	@HAMI_CORE_SOURCE='$(HAMI_CORE_SOURCE)' $(BIN)/python -m pytest -m hami_core -rs tests/hami_core $(ARGS)

.PHONY: test-nvidia
test-nvidia: $(DEVELOPMENT) ## NVIDIA's own programs on the simulated driver beside ours, as root; Go builds them once
	@$(BIN)/python -m tests.nvidia.programs > /dev/null || test $$? -eq 3
	@$(BIN)/python -m pytest -m nvidia -rs tests/nvidia $(ARGS)

.PHONY: check-model
check-model: $(DEVELOPMENT) ## every interleaving of small worlds over the extender's machines, in minutes: docs/compatibility.md
	@$(BIN)/python -m simulation.model

.PHONY: test-faults docs-reliability
test-faults: $(DEVELOPMENT) ## every fault at every step of a pod's life, within 90 minutes: docs/compatibility.md
	@rm -rf build/faults && mkdir -p build/faults
	@FAULTS_RESULTS=$(CURDIR)/build/faults timeout 90m $(BIN)/python -m pytest -m '' --numprocesses 4 --dist worksteal -rs tests/faults $(ARGS)

docs-reliability: $(DEVELOPMENT) ## regenerate the table of faults, with the times of the last test-faults
	@$(BIN)/python -m tests.faults.document build/faults

AXE_VERSION := 4.14.1
AXE := $(HOME)/.cache/topogpu/axe/$(AXE_VERSION)/axe.min.js
$(AXE): # fetched by npm, not kept here: its licence (MPL-2.0) is not ours
	@mkdir -p $(@D) && cd $(@D) && npm pack --silent axe-core@$(AXE_VERSION) > /dev/null && tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js && rm axe-core-*.tgz

test-page: $(DEVELOPMENT) $(DOCUMENTS) ## the status page and these documents in a real browser: Debian's chromium, and axe-core from npm
	@command -v chromium > /dev/null || command -v google-chrome > /dev/null || { echo "no Chromium: apt install chromium" >&2; exit 1; }
	@test -e $(AXE) || $(MAKE) --no-print-directory $(AXE) || echo "no axe-core, so accessibility is not checked: npm is needed to fetch it" >&2
	@$(BIN)/python -m pytest -m browser --numprocesses 2 -rs $(ARGS)

FUZZED := register scores decision lock quantity extender review region checkpoint cdi topology machine
FUZZ_SECONDS ?= 10
fuzz: $(DEVELOPMENT) ## coverage-guided fuzzing of each decoder, FUZZ_SECONDS=10 of each
	@for target in $(FUZZED); do $(BIN)/python -m tests.fuzz $$target --seconds $(FUZZ_SECONDS) > build/fuzz-$$target.log 2>&1 \
	  && echo "$$target: $$(sed -n 's/stat::number_of_executed_units: *//p' build/fuzz-$$target.log) inputs" \
	  || { tail -40 build/fuzz-$$target.log; exit 1; }; done

check: $(DEVELOPMENT) ## lint, format, types, import contracts, generated stubs, sentences, workflows, plain words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@rm -rf build/stubs && mkdir -p build/stubs && $(MAKE) --no-print-directory stubs STUBS_OUT=build/stubs
	@for f in $$(cd build/stubs && find . -type f); do cmp -s build/stubs/$$f $$f || { echo "generated stub $$f is out of date: run 'make stubs'" >&2; exit 1; }; done
	@echo "stubs up to date"
	@$(MAKE) --no-print-directory sentences
	@if test -x $(ACTIONLINT) || command -v go > /dev/null; then $(MAKE) --no-print-directory workflows; else echo "left out: workflows, for neither $(ACTIONLINT) nor Go is there"; fi
	@if test -x $(VALE) || command -v go > /dev/null; then $(MAKE) --no-print-directory prose; else echo "left out: plain words, for neither $(VALE) nor Go is there"; fi

.PHONY: sentences
sentences: $(DEVELOPMENT) ## docstrings, comments and texts for people are sentences
	@$(BIN)/python docs/prose/sentences.py $(SENTENCES)

VALE := $(HOME)/.cache/topogpu/vale/3.15.2/vale
$(VALE): docs/prose/vale/go.mod
	@command -v go > /dev/null || { echo "no Go, which builds the linter for prose once: see https://go.dev/doc/install" >&2; exit 1; }
	@echo "building vale into $(@D), once ..."
	@cd docs/prose/vale && go build -mod=readonly -trimpath -o $@ tool
	@touch $@

ACTIONLINT := $(HOME)/.cache/topogpu/actionlint/1.7.12/actionlint
$(ACTIONLINT): daemonset/tools/actionlint/go.mod
	@command -v go > /dev/null || { echo "no Go, which builds the linter for workflows once: see https://go.dev/doc/install" >&2; exit 1; }
	@cd daemonset/tools/actionlint && go build -mod=readonly -trimpath -o $@ tool
	@touch $@

workflows: $(DEVELOPMENT) $(ACTIONLINT) ## GitHub's workflow files: mistakes, and weaknesses; Go builds the linter once
	@$(ACTIONLINT) .github/workflows/*.yml
	@$(BIN)/zizmor --offline --quiet .github

vale: $(VALE) ## the linter for prose, which Go builds once

prose: $(DEVELOPMENT) $(VALE) ## plain words in the documents and in what the programs say; Go builds the linter once
	@rm -rf build/prose && $(BIN)/python docs/prose/words.py build/prose $$(git ls-files $(SPOKEN) | grep -v _pb2)
	@$(VALE) --no-wrap --output=line *.md docs
	@cd build/prose && $(VALE) --config=../../.vale.ini --no-wrap --output=line .

format: $(DEVELOPMENT) ## reformat in place
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(DOCUMENTS) ## the documents as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

docs-settings: $(DEVELOPMENT) ## regenerate the tables of settings and the schema of the chart's values
	@$(BIN)/python -m tests.settings_reference

docs-metrics: $(DEVELOPMENT) ## regenerate the list of metrics
	@$(BIN)/python -m tests.metrics_reference

.PHONY: docs-wire
docs-wire: $(DEVELOPMENT) ## regenerate the reference of annotations, labels, resources and events
	@mkdir -p build && $(BIN)/python -m tests.wire_reference > build/wire-reference.md && mv build/wire-reference.md docs/

docs-binding: $(DEVELOPMENT) ## redraw how a pod is bound
	@$(BIN)/python -m tests.binding_document

pictures: $(DEVELOPMENT) ## the pictures of the documents, from a simulated cluster; those of the status page need Chromium
	@$(BIN)/python docs/pictures/record.py
	@$(BIN)/python docs/pictures/draw.py

PROMTOOL := $(HOME)/.cache/topogpu/promtool
promtool: ## Prometheus' tool, which tests the alert rules, from Debian's or Ubuntu's package
	@rm -rf build/prometheus && mkdir -p build/prometheus $(PROMTOOL)
	@cd build/prometheus && { apt-get download prometheus || { echo "reading apt's lists again ..." && apt-get update --quiet --quiet && apt-get download prometheus; }; }
	@cd build/prometheus && dpkg -x prometheus_*.deb .
	@cp build/prometheus/usr/bin/promtool $(PROMTOOL)/ && $(PROMTOOL)/promtool --version

STUBS_OUT ?= .
stubs: $(DEVELOPMENT) ## regenerate the gRPC stubs from the .proto files
	@PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -I. --python_out=$(STUBS_OUT) --mypy_out=$(STUBS_OUT) \
	  --grpc_python_out=$(STUBS_OUT) --mypy_grpc_out=$(STUBS_OUT) $(PROTOS)

manifests: $(DEVELOPMENT) ## render daemonset/base and what overlays add to it from the chart, with Helm, which Go builds once
	@$(BIN)/python -m daemonset.render

check-manifests: $(DEVELOPMENT) ## base and overlays are what the chart renders; left out where neither Helm nor Go is at hand
	@$(BIN)/python -m daemonset.render --check || test $$? -eq 3

image: $(DEVELOPMENT) ## the image as an OCI archive in build/image; ARGS="--base debian --simulated" where no registry is reachable, and for simulated GPUs too
	@$(BIN)/python -m daemonset.image $(ARGS)

image-check: $(DEVELOPMENT) ## builds the image twice and compares, looks for what must not be in it, starts its programs, lists licences
	@$(BIN)/python -m daemonset.image_check $(ARGS)

version: $(DEVELOPMENT) ## writes VERSION=NUMBER everywhere, and its section of CHANGELOG.md
	@$(BIN)/python -m daemonset.versions '$(VERSION)'
	@$(MAKE) --no-print-directory manifests

release: $(DEVELOPMENT) ## builds all of VERSION=NUMBER into build/release, and tags; PUBLISH=REGISTRY pushes it
	@$(INSTALL) --quiet ziglang
	@$(BIN)/python -m daemonset.release '$(VERSION)' --publish '$(PUBLISH)' --url '$(URL)' $(ARGS)

kubectl-plugin: $(DEVELOPMENT) ## kubectl topogpu as one file in build/plugin; ARGS="--release --url https://…" for all platforms and krew
	@$(BIN)/python -m daemonset.plugin $(ARGS)

lock: $(DEVELOPMENT) ## pin the image's requirements again, with hashes
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header pyproject.toml -o daemonset/requirements.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header daemonset/build-requirements.in -o daemonset/build-requirements.lock

clean: ## remove the virtual environment and everything built
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
