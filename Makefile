# What people and CI run; both the same way.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz check bench fits experiments attacks

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

demo: ## nine real training jobs share a virtual cluster under three engines
	cargo build --release --locked -p trainmaster -p trainmaster-trainer
	target/release/trainmaster demo $(DEMO)

test: ## everything, with the counts of tests run and skipped
	scripts/test

test-all: ## the same, and what takes long: 1,000 kill -9, 2,000 hostile submissions to a real Slurm
	TRAINMASTER_KILLS=1000 TRAINMASTER_SUBMISSIONS=2000 scripts/test

fuzz: ## every parser of what others write, for a minute each, and 10^6 made-up inputs on a small stack
	scripts/fuzz $(FUZZ)

check: ## fmt, clippy, rustdoc, licences, sources and known flaws of dependencies
	scripts/check

bench: ## rounds of optimus and mlfs, an arrival under oasis and one under edge, each beside plain algorithms
	cargo bench --locked -p trainmaster-core --bench round
	cargo bench --locked -p trainmaster-core --bench arrival
	cargo bench --locked -p trainmaster-core --bench dispatch
	cargo bench --locked -p trainmaster-core --bench task

fits: ## docs/fits.md anew, from ../shared/data and a measured grid
	cargo build --release --locked -p trainmaster -p trainmaster-trainer
	cargo run --release --locked -q -p trainmaster --example fits > docs/fits.md

attacks: ## what one job, tenant or stranger at its worst does to others, five times; OLDER=program compares
	cargo build --release --locked -p trainmaster --bin trainmaster --example attacks
	ROUNDS=$${ROUNDS:-5} target/release/examples/attacks target/release/trainmaster $(OLDER)

experiments: ## docs/experiments.md anew: the papers' experiments on virtual clusters
	cargo build --release --locked -p trainmaster --bin trainmaster --example experiments
	target/release/examples/experiments > target/experiments.md
	mv target/experiments.md docs/experiments.md
