//! Runs all kept inputs and thousands of generated ones, on a stack as small as a cluster manager's.

use std::{fs, path::Path, thread};

use trainmaster_fuzz::{ALL, Inputs, STACK};

/// Number of generated inputs per target. `make fuzz` runs many more.
const INPUTS: usize = 3000;

#[test]
fn no_input_crashes_or_blocks_its_reader() {
    let mut kept = 0;
    for target in ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let corpus: Vec<Vec<u8>> = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| fs::read(entry.unwrap().path()).unwrap())
            .collect();
        kept += corpus.len();
        // An overflow ends the whole program. This line names its place.
        eprintln!("{}: {} inputs are kept", target.name, corpus.len());
        let feed = move || {
            (target.seeds)().iter().chain(&corpus).for_each(|input| (target.run)(input));
            Inputs::new(target, corpus, 1).take(INPUTS).for_each(|input| (target.run)(&input));
        };
        let thread = thread::Builder::new().stack_size(STACK).spawn(feed).unwrap();
        assert!(thread.join().is_ok(), "{}: it panicked", target.name);
    }
    assert!(kept > 100, "{kept} inputs are kept");
}
