# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. Everything built lands in build/; nothing else is written.
SHELL := /bin/bash
.DEFAULT_GOAL := build

GO      := $(shell sh ci/find-go.sh)
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOBUILD  = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'
PREFIX  ?= /usr/local
B       := build

.PHONY: build figures vopr demo test test-all test-interop test-clients test-rccl test-dpdk test-sim bench bench-mpi bench-dpdk bench-rccl lint install uninstall clean help need-go fmt generate

build: need-go $(B)/bin/nicemu $(B)/bin/mroce $(B)/bin/mroce-dpdk ## build everything into build/: bin/nicemu, bin/mroce, bin/mroce-dpdk (where there is DPDK), lib/libibverbs.so.1, lib/librdmacm.so.1, lib/librccl-net.so, tests/*
	@$(MAKE) --no-print-directory -C verbs
	@$(MAKE) --no-print-directory -C rccl-shim

# Go's own cache decides what is stale.
.PHONY: $(B)/bin/nicemu $(B)/bin/mroce
$(B)/bin/nicemu: need-go
	@mkdir -p $(B)/bin
	$(GOBUILD) -o $@ ./nicemu

$(B)/bin/mroce: need-go
	@mkdir -p $(B)/bin
	$(GOBUILD) -o $@ ./tools/mroce

# The only program with cgo.
.PHONY: $(B)/bin/mroce-dpdk
$(B)/bin/mroce-dpdk: need-go
	@mkdir -p $(B)/bin
	@if pkg-config --exists libdpdk 2>/dev/null; then sh ci/refimpl.sh \
		$(GO) build -tags dpdk -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o ../$@ .; \
	else echo "make: no libdpdk (Debian: libdpdk-dev), so mroce-dpdk is left out; everything else is built"; fi

demo: ## the whole thing at work in under two minutes: two hosts, four lossy planes, Debian's own RDMA programs
	@bash ci/deps.sh demo
	@echo "building …"
	@$(MAKE) -s build
	@$(B)/bin/nicemu demo

test: ## what CI runs: build, generated files, lint, unit, race, ASan, fuzz, simulation, pyverbs, live, interop; skips what this machine cannot do and says so
	@bash ci/deps.sh test
	@ci/run.sh test

test-all: ## make test and every full suite (long); MR_TEST_RESUME=1 goes on where the last run of this commit stopped
	@bash ci/deps.sh all
	@ci/run.sh test full

test-interop: ## RoCEv2 with a peer nobody here wrote: soft-RoCE of Debian's kernel in a QEMU machine, both directions, with loss
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@ci/run.sh interop

test-clients: ## what Debian's programs do over our NIC (UCX, MPI, libfabric, perftest, …): prints docs/compatibility.md's table, fails where it got worse
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@ci/run.sh full_clients_a full_clients_b

test-dpdk: ## the DPDK reference implementation: two daemons over memif without huge pages, two planes and four, loss, failures, kills, MPI, pyverbs, nicemu as the peer
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@ci/run.sh dpdk full_dpdk

test-rccl: ## collectives through the plugin of RCCL and NCCL: 2 to 16 ranks, to 64 MiB, loss, planes and ranks that go, 4,000 connections
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@ci/run.sh rccl full_rccl

test-sim: ## the simulator's plans beside their goals: loss, planes, failures, collectives, the work that htsim was measured with
	@bash ci/deps.sh build
	@ci/run.sh full_sim

figures: need-go $(B)/bin/mroce ## all plots and tables of docs/results again (QUICK=1: a smoke test into build/figures-quick); goes on where it was stopped
	@$(B)/bin/mroce sim figures --command "make figures" $(if $(QUICK),--quick --work $(B)/figures-quick --out $(B)/figures-quick/results,--work $(B)/figures --out docs/results)

bench: ## throughput and latency beside TCP on the same machine; table on the screen, JSON in build/bench.json
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@$$(sh ci/find-go.sh) run ./tools/bench -bin $(B)/bin/nicemu -o $(B)/bench.json

bench-mpi: ## collective operations of MPI over our NIC, beside the same mpirun over TCP; table on the screen, JSON in build/bench-mpi.json
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@$$(sh ci/find-go.sh) run ./tools/bench -mpi -bin $(B)/bin/nicemu

bench-rccl: ## collectives through the plugin of RCCL and NCCL beside a net of TCP sockets, with and without loss; JSON in build/bench-rccl.json
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@$$(sh ci/find-go.sh) run ./tools/bench -rccl -bin $(B)/bin/nicemu

bench-dpdk: ## the reference implementation on DPDK beside nicemu, TCP and bare memif; table on the screen, JSON in build/bench-dpdk.json
	@bash ci/deps.sh test
	@$(MAKE) -s build
	@$$(sh ci/find-go.sh) run ./tools/bench -dpdk -bin $(B)/bin/nicemu

SEED  ?= 1
SEEDS ?= 2000
vopr: need-go $(B)/bin/mroce ## random worlds of NICs, programs and bad networks, checked (SEEDS=2000 SEED=1); a failure prints how to play it again
	@$(B)/bin/mroce vopr --seeds $(SEEDS) --seed $(SEED)

lint: need-go ## static checks only: golangci-lint, go vet, formats
	@ci/run.sh generated lint

fmt: need-go ## format Go and C in place
	@$(dir $(GO))gofmt -w $$(git ls-files '*.go')
	@clang-format -i --style=file:verbs/.clang-format $$(git ls-files 'verbs/*.c' 'verbs/*.h' 'rccl-shim/*.c' 'rccl-shim/*.h' 'tests/*.c' 'refimpl/*.h' 'refimpl/*.c' ':!verbs/include/mr_abi.h')

generate: need-go ## regenerate what is generated from spec/
	@$(GO) run ./tools/specgen

install: build ## install below PREFIX (/usr/local), DESTDIR in front of it for packagers; the library stays out of the linker's path
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/mroce
	install -m 755 $(B)/bin/nicemu $(B)/bin/mroce $(wildcard $(B)/bin/mroce-dpdk) $(DESTDIR)$(PREFIX)/bin/
	cp -rP $(B)/lib/libibverbs.so* $(B)/lib/librdmacm.so* $(B)/lib/librccl-net.so $(B)/lib/libnccl-net.so $(B)/lib/collbench-rank $(B)/lib/rsocket $(DESTDIR)$(PREFIX)/lib/mroce/
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1 man/man7 bash-completion/completions)
	$(B)/bin/nicemu man >$(DESTDIR)$(PREFIX)/share/man/man1/nicemu.1
	$(B)/bin/mroce man >$(DESTDIR)$(PREFIX)/share/man/man1/mroce.1
	[ ! -x $(B)/bin/mroce-dpdk ] || { $(B)/bin/mroce-dpdk man >$(DESTDIR)$(PREFIX)/share/man/man1/mroce-dpdk.1 && \
		$(B)/bin/mroce-dpdk completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/mroce-dpdk; }
	install -m 644 verbs/man/mroce-verbs.7 rccl-shim/man/mroce-net.7 $(DESTDIR)$(PREFIX)/share/man/man7/
	$(B)/bin/nicemu completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/nicemu
	$(B)/bin/mroce completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/mroce

uninstall: ## remove what install put there
	rm -rf $(addprefix $(DESTDIR)$(PREFIX)/,bin/nicemu bin/mroce bin/mroce-dpdk lib/mroce share/man/man1/nicemu.1 share/man/man1/mroce.1 share/man/man1/mroce-dpdk.1 share/man/man7/mroce-verbs.7 share/man/man7/mroce-net.7) \
		$(addprefix $(DESTDIR)$(PREFIX)/share/bash-completion/completions/,nicemu mroce mroce-dpdk)

clean: ## remove build/
	rm -rf $(B)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

need-go:
	@[ -n "$(GO)" ] || { echo "make: no Go that can build this; an administrator installs one with:  sudo bash ci/deps.sh build" >&2; exit 3; }
