# What people and CI run; both the same way.
.DEFAULT_GOAL := help
.PHONY: help demo test check bench fits experiments

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: ## nine real training jobs share a virtual cluster under three engines
	cargo build --release --locked -p trainmaster -p trainmaster-trainer
	target/release/trainmaster demo $(DEMO)

test: ## everything, with the counts of tests run and skipped
	scripts/test

check: ## fmt, clippy, rustdoc, licences and sources of dependencies
	scripts/check

bench: ## rounds of optimus and mlfs, an arrival under oasis and one under edge, each beside plain algorithms
	cargo bench --locked -p trainmaster-core --bench round
	cargo bench --locked -p trainmaster-core --bench arrival
	cargo bench --locked -p trainmaster-core --bench dispatch
	cargo bench --locked -p trainmaster-core --bench task

fits: ## docs/fits.md anew, from ../shared/data and a measured grid
	cargo build --release --locked -p trainmaster -p trainmaster-trainer
	cargo run --release --locked -q -p trainmaster --example fits > docs/fits.md

experiments: ## docs/experiments.md anew: the papers' experiments on virtual clusters
	cargo build --release --locked -p trainmaster --bin trainmaster --example experiments
	target/release/examples/experiments > target/experiments.md
	mv target/experiments.md docs/experiments.md
