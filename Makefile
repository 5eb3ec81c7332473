# Every target that stands with ## is shown by `make help`. What is built goes
# to .build, which git ignores.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Go needs a home for its caches; a bare CI job may have none.
ifeq ($(strip $(HOME)),)
export HOME := $(or $(shell getent passwd "$$(id -u)" | cut -d: -f6),$(CURDIR)/.build/home)
endif

GO       ?= go
BUILD    := $(CURDIR)/.build
BIN      := $(BUILD)/bin
STORE    := $(BUILD)/images
WORK     := $(BUILD)/work
PREFIX   ?= /usr/local
STATE_DIR ?= /var/lib/agentic-sandbox
# Only "make install" puts files where root alone may: what is built stays the user's.
SUDO     ?= $(if $(DESTDIR)$(filter 0,$(shell id -u)),,sudo)

# Works without tags, without git and in a checkout that belongs to another user.
VERSION  ?= $(shell git -c safe.directory='$(CURDIR)' describe --tags --always --dirty 2>/dev/null || echo unknown)
# The version is our own, so the stamp of the go command is not needed; it
# fails where git refuses a checkout.
GOBUILD  := $(GO) build -trimpath -buildvcs=false
LDFLAGS  := -s -w -X main.version=$(VERSION)

# Two packages at once: tests boot machines, which starve one another on the
# usual two cores of a CI host long before memory runs out.
P         ?= 2
TESTFLAGS ?=
FUZZTIME  ?= 1m
FAULTS_STEPS      ?= 1500
FAULTS_REAL_STEPS ?= 30

# Where tests find what was built. They skip, and say so, without.
export SANDBOX_BIN           := $(BIN)
export SANDBOX_TEST_IMAGES   := $(STORE)
export SANDBOX_TEST_GUEST    := $(WORK)/guest

GOFILES = $(shell git -c safe.directory='$(CURDIR)' ls-files --cached --others --exclude-standard '*.go')
SCRIPTS = $(shell git -c safe.directory='$(CURDIR)' ls-files --cached --others --exclude-standard '*.sh' .ci/run)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Variables: P=$(P) (packages tested at once), TESTFLAGS, FUZZTIME=$(FUZZTIME), PREFIX=$(PREFIX)"

.PHONY: setup
setup: ## Install the packages that are missing (Debian, Ubuntu; root or sudo)
	@command -v $(GO) >/dev/null || { \
		echo "go is not in PATH: install Go 1.25 or later, https://go.dev/dl" >&2; \
		[ -z "$${SUDO_USER:-}" ] || echo "If $$SUDO_USER has it, run make without sudo: it asks for sudo where it needs it." >&2; \
		exit 1; \
	}
	@# An older one cannot read go.mod, or is not allowed to fetch a newer one.
	@$(GO) list -m >/dev/null || { echo "$$($(GO) env GOVERSION) is too old: install Go 1.25 or later, https://go.dev/dl" >&2; exit 1; }
	@deploy/setup/install.sh base

# --- building

.PHONY: build
build: setup sandboxd sandboxctl sandbox-agent ## Build the three programs into .build/bin

.PHONY: sandboxd
sandboxd: # with cgo: libvirt and SQLite
	CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/sandboxd ./controlplane/cmd/sandboxd

.PHONY: sandboxctl
sandboxctl:
	CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/sandboxctl ./controlplane/cmd/sandboxctl

.PHONY: sandbox-agent
sandbox-agent: # static: it runs on any root disk, and before there is one
	@# Without its traces gRPC pulls in a third less: every machine holds this in memory.
	CGO_ENABLED=0 $(GOBUILD) -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $(BIN)/sandbox-agent ./guestagent/cmd/sandbox-agent

.PHONY: images
images: setup sandbox-agent ## Build the images into .build/images (once for the same inputs)
	$(GO) run -buildvcs=false ./images/cmd/sandbox-images --store $(STORE) --work $(WORK) --agent $(BIN)/sandbox-agent

.PHONY: generate
generate: ## Write the generated code anew
	@deploy/setup/install.sh generate
	deploy/generate/generate.sh

# --- using

.PHONY: demo
demo: build images ## Boot a machine, run the adapter command through A2A, show it, remove everything
	$(GO) run -buildvcs=false ./test/demo

.PHONY: install
install: CPFLAGS := -a --no-preserve=ownership --sparse=always --remove-destination
install: build images ## Install programs, systemd unit and images under PREFIX and STATE_DIR (root or sudo)
	$(SUDO) deploy/setup/install.sh base
	$(SUDO) install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)/sandboxd $(BIN)/sandboxctl $(BIN)/sandbox-agent
	sed 's|@PREFIX@|$(PREFIX)|g' deploy/systemd/sandboxd.service >$(BUILD)/sandboxd.service
	$(SUDO) install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system $(BUILD)/sandboxd.service
	$(SUDO) install -d -m 0711 $(DESTDIR)$(STATE_DIR)
	$(SUDO) install -d -m 0755 $(DESTDIR)$(STATE_DIR)/images
	@# Names last, for they point at the others. A file that running machines
	@# have open is never written to: it is left alone, or replaced by a new one.
	$(SUDO) cp $(CPFLAGS) --update $(STORE)/blobs $(STORE)/manifests $(DESTDIR)$(STATE_DIR)/images
	$(SUDO) cp $(CPFLAGS) $(STORE)/names $(DESTDIR)$(STATE_DIR)/images
	@echo "to start it: systemctl daemon-reload && systemctl enable --now sandboxd"

# --- checking

.PHONY: test
test: build images ## Run all tests with -race, real machines included
	$(GO) vet ./...
	$(GO) test -race -timeout 30m -p $(P) $(TESTFLAGS) ./...

# Without a package named, go test shows what a passing test prints.
.PHONY: conformance
conformance: $(if $(AGAINST),setup,build images) ## Hold sandboxd, or AGAINST=URL TOKEN_FILE=file, to A2A and its extensions
	cd test/conformance && SANDBOX_CONFORMANCE_URL='$(AGAINST)' \
		SANDBOX_CONFORMANCE_TOKEN_FILE='$(if $(TOKEN_FILE),$(abspath $(TOKEN_FILE)))' \
		SANDBOX_CONFORMANCE_TOKEN_FILE_2='$(if $(TOKEN_FILE_2),$(abspath $(TOKEN_FILE_2)))' \
		SANDBOX_CONFORMANCE_REPORT='$(if $(AGAINST),$(BUILD)/conformance-against.json)' \
		$(GO) test -count=1 -timeout 20m $(if $(AGAINST),-run TestAgainst) $(TESTFLAGS)

.PHONY: interop
interop: build images ## Drive a running sandboxd with the A2A SDKs for Go, JavaScript and Python
	@deploy/setup/install.sh python
	test/interop/setup.sh $(BUILD)/interop
	SANDBOX_INTEROP=$(BUILD)/interop $(GO) test -race -count=1 -v -timeout 15m ./test/interop $(INTEROPFLAGS)

.PHONY: api-test
api-test: build images ## Hold the management API of a running sandboxd to its OpenAPI document (schemathesis)
	@deploy/setup/install.sh python
	deploy/setup/venv.sh $(BUILD)/schemathesis test/api/requirements.txt
	SANDBOX_SCHEMATHESIS=$(BUILD)/schemathesis/bin/schemathesis SANDBOX_SCHEMATHESIS_SEED='$(SEED)' $(GO) test -race -count=1 -v -timeout 15m ./test/api

# What is repeated says so: FAULTS_SEED is told by every run.
.PHONY: faults
faults: build images ## Break a running control plane in every way, then at random for FAULTS_STEPS (FAULTS_SEED repeats a run)
	FAULTS_SEED=$${FAULTS_SEED:-$$RANDOM$$RANDOM} FAULTS_STEPS=$(FAULTS_STEPS) FAULTS_REAL_STEPS=$(FAULTS_REAL_STEPS) \
		$(GO) test -race -count=1 -v -timeout 60m ./test/faults $(TESTFLAGS)

.PHONY: lint
lint: lint-setup lint-format lint-go lint-shell check-generated ## Check form: golangci-lint, gofmt, vet, shellcheck, generated code

.PHONY: lint-setup
lint-setup: setup
	@deploy/setup/install.sh lint

.PHONY: lint-format
lint-format:
	@bad=$$(gofmt -l $(GOFILES)); [ -z "$$bad" ] || { echo "not formatted (run gofmt -w):"; echo "$$bad"; exit 1; } >&2

# golangci-lint has a module file of its own: its 200 requirements must not
# choose the versions of what sandboxd is built with.
.PHONY: lint-go
lint-go:
	$(GO) vet ./...
	GOLANGCI_LINT_CACHE=$(BUILD)/lint-cache $(GO) tool -modfile=deploy/tools/go.mod golangci-lint run --timeout 15m ./...

.PHONY: lint-shell
lint-shell:
	shellcheck $(SCRIPTS)

.PHONY: check-generated
check-generated: # that the generated code is what its sources say
	deploy/generate/generate.sh --check

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME, and then say which failed
	@failed=; \
	for place in $$(grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's,/[^/]*:func ,:,' | sort -u); do \
		echo "$$place"; \
		$(GO) test -run '^$$' -fuzz "^$${place#*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s "$${place%:*}" </dev/null || \
			failed="$$failed $$place"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

.PHONY: bench
bench: build images ## Measure it against bare QEMU, raw vsock and the Python SDK
	$(GO) run -buildvcs=false ./test/bench -version '$(VERSION)' $(BENCHFLAGS)

.PHONY: clean
clean: ## Remove .build
	@# Go makes the files of a module cache read-only.
	@[ ! -d $(BUILD)/home ] || chmod -R u+w $(BUILD)/home
	rm -rf $(BUILD)
