# The commands for people and CI. Both use the same ones.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all goldens nvidia fuzz check bench resize fits experiments attacks dist first-hour

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

demo: ## watch real training jobs grow and shrink on a virtual cluster; DEMO=--compare: nine jobs, three engines
	cargo build --profile demo --locked -p trainmaster -p trainmaster-trainer
	target/demo/trainmaster demo $(DEMO)

test: ## run all tests; print the numbers of tests run and skipped
	scripts/test

test-all: ## also run long tests: 1,000 kill -9, 2,000 submissions, 10^6 calls from C, more histories, old Ray, packages
	TRAINMASTER_KILLS=1000 TRAINMASTER_SUBMISSIONS=2000 TRAINMASTER_CALLS=500000 TRAINMASTER_RELEASES=all \
		TRAINMASTER_CASES=5 scripts/test

goldens: ## the golden decisions of every scenario and engine, written again: read the difference
	env -u CI BLESS=1 cargo test --locked -p trainmaster-conformance --test golden -- --test-threads 1
	git --no-pager diff --stat -- integration/conformance/golden
	git status --short -- integration/conformance/golden

nvidia: ## run the tests that need an NVIDIA GPU
	cargo test --locked -p trainmaster-adapters --features nvidia-tests --test local nvidia

fuzz: ## fuzz each parser of foreign input for a minute, then feed 10^6 generated inputs, on a small stack
	scripts/fuzz $(FUZZ)

dist: ## build a tarball, a Debian package and a wheel in target/dist; the programs are static
	scripts/install service python
	scripts/dist

first-hour: ## play docs/first-hour.md in a fresh root and write its outputs again: read the difference
	integration/service/test --write
	git --no-pager diff --stat -- docs/first-hour.md

check: ## run fmt, clippy and rustdoc; check licences, sources and known vulnerabilities of dependencies
	scripts/check

bench: ## measure rounds of optimus and mlfs, and arrivals in oasis and edge, each beside plain algorithms
	cargo bench --locked -p trainmaster-core --bench round
	cargo bench --locked -p trainmaster-core --bench arrival
	cargo bench --locked -p trainmaster-core --bench dispatch
	cargo bench --locked -p trainmaster-core --bench task

resize: ## measure how long a PyTorch training stands still at a change of its workers, beside torchrun alone
	scripts/install python
	cd integration/python && ../../target/python-venv/bin/python -m tests.resize $(ROUNDS)

fits: ## generate docs/fits.md from measured curves (../shared/data, not in the repository) and measured grids
	cargo build --release --locked -p trainmaster -p trainmaster-trainer
	cargo run --release --locked -q -p trainmaster --example fits > target/fits.md
	mv target/fits.md docs/fits.md

attacks: ## measure five times how one job, tenant or stranger can harm others; OLDER=PROGRAM compares
	cargo build --release --locked -p trainmaster -p trainmaster-daemon --bin trainmaster --example attacks
	ROUNDS=$${ROUNDS:-5} target/release/examples/attacks target/release/trainmaster $(OLDER)

experiments: ## run all commands in docs/experiments.md and write its tables; ONLY="BEGINNING OF A SECTION" runs some
	cargo build --release --locked -p trainmaster --bin trainmaster --example experiments
	target/release/examples/experiments $(if $(ONLY),"$$ONLY")
