//! Parameter assignment of ResNet-50 and of random blocks.

#![allow(clippy::disallowed_macros)] // tests print what they measure

use proptest::prelude::*;
use trainmaster_core::paa::{Assignment, PaaError, assign};

/// The parameter tensors of ResNet-50 (v1, 1000 classes) in a framework's order, built from the architecture: a 7×7
/// stem, four stages of bottlenecks, a classifier. A scale and a shift follow each convolution.
fn resnet50() -> Vec<u64> {
    fn conv(tensors: &mut Vec<u64>, kernel: u64, from: u64, to: u64) {
        tensors.extend([kernel * kernel * from * to, to, to]);
    }
    let mut tensors = Vec::new();
    conv(&mut tensors, 7, 3, 64);
    let mut from = 64;
    for (width, depth) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for layer in 0..depth {
            conv(&mut tensors, 1, from, width);
            conv(&mut tensors, 3, width, width);
            conv(&mut tensors, 1, width, 4 * width);
            if layer == 0 {
                conv(&mut tensors, 1, from, 4 * width);
            }
            from = 4 * width;
        }
    }
    tensors.extend([2048 * 1000, 1000]);
    tensors
}

/// MXNet's rule, as the paper describes it: blocks below the threshold go to a random server, larger ones are sliced
/// evenly over all. Returns (size spread, request spread, requests).
fn mxnet(blocks: &[u64], servers: usize, seed: u64) -> (u64, u64, u64) {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % servers
    };
    let mut size = vec![0; servers];
    let mut requests = vec![0; servers];
    for block in blocks {
        if *block < 1_000_000 {
            let server = random();
            size[server] += block;
            requests[server] += 1;
        } else {
            for server in 0..servers {
                size[server] += block / servers as u64;
                requests[server] += 1;
            }
        }
    }
    let spread = |v: &[u64]| v.iter().max().unwrap() - v.iter().min().unwrap();
    (spread(&size), spread(&requests), requests.iter().sum())
}

#[test]
fn resnet50_matches_the_papers_table_3() {
    let blocks = resnet50();
    assert_eq!((blocks.len(), blocks.iter().sum::<u64>()), (161, 25_557_032));
    let a = assign(&blocks, 10).unwrap();
    // The paper's own 157 blocks give 0.1 M, 1 and 157.
    assert_eq!((a.request_spread, a.requests), (1, 161));
    assert_eq!((a.size_spread + 500) / 1000, 103, "size spread {}", a.size_spread);
}

#[test]
fn mxnets_rule_is_far_worse() {
    let blocks = resnet50();
    let a = assign(&blocks, 10).unwrap();
    let draws = 200;
    let (mut size, mut requests) = (0, 0);
    for seed in 0..draws {
        let (s, r, total) = mxnet(&blocks, 10, seed);
        // Ten tensors are sliced in ten each: 161 + 90, like the paper's 247 = 157 + 90.
        assert_eq!(total, 251);
        size += s;
        requests += r;
    }
    let (size, requests) = (size / draws, requests / draws);
    println!(
        "MXNet's rule, mean of {draws} draws: {size} parameters and {requests} requests apart; ours {}",
        a.size_spread
    );
    assert!(size > 10 * a.size_spread && requests > 5 * a.request_spread);
}

#[test]
fn edge_cases() {
    assert_eq!(assign(&[1], 0), Err(PaaError::NoServers));
    assert_eq!(assign(&[u64::MAX, 1], 2), Err(PaaError::TooLarge));
    let none = assign(&[], 3).unwrap();
    assert_eq!((none.requests, none.size_spread, none.servers.len()), (0, 0, 3));
    let zeros = assign(&[0, 0, 0], 2).unwrap();
    assert_eq!((zeros.requests, zeros.request_spread), (3, 1));
    let one = assign(&[10, 5, 1], 1).unwrap();
    assert_eq!((one.requests, one.servers[0].size), (3, 16));
    let huge = assign(&[u64::MAX], 3).unwrap();
    assert_eq!((huge.requests, huge.size_spread), (3, 0));
    // A block up to the average is never cut, even if the servers become uneven.
    let uneven = assign(&[5, 5, 5], 2).unwrap();
    assert_eq!((uneven.requests, uneven.size_spread), (3, 5));
}

fn check(blocks: &[u64], servers: usize, a: &Assignment) {
    let total: u64 = blocks.iter().sum();
    let mut pieces = a.pieces.iter().peekable();
    for (block, size) in blocks.iter().enumerate() {
        let mut covered = 0;
        let mut parts = 0;
        while let Some(piece) = pieces.next_if(|p| p.block == block) {
            assert_eq!(piece.offset, covered, "block {block} has a gap or an overlap");
            assert!(piece.length > 0 || *size == 0);
            assert!(piece.length <= total.div_ceil(servers as u64), "a piece above the average");
            covered += piece.length;
            parts += 1;
        }
        assert_eq!(covered, *size);
        let whole = u128::from(*size) * servers as u128 <= u128::from(total);
        assert!(parts == 1 || !whole, "block {block} cut without need");
    }
    assert!(pieces.next().is_none());
    for (server, load) in a.servers.iter().enumerate() {
        let mine = || a.pieces.iter().filter(|p| p.server == server);
        assert_eq!(load.size, mine().map(|p| p.length).sum::<u64>());
        assert_eq!(load.requests, mine().count() as u64);
    }
    let spread = |of: fn(&trainmaster_core::paa::Load) -> u64| {
        a.servers.iter().map(of).max().unwrap() - a.servers.iter().map(of).min().unwrap()
    };
    assert_eq!(a.size_spread, spread(|l| l.size));
    assert_eq!(a.request_spread, spread(|l| l.requests));
    assert_eq!(a.requests, a.servers.iter().map(|l| l.requests).sum::<u64>());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_parameter_is_placed_once(
        blocks in prop::collection::vec(prop_oneof![0_u64..100, 0_u64..100_000, 0_u64..50_000_000], 0..200),
        servers in 1_usize..40,
    ) {
        let a = assign(&blocks, servers).unwrap();
        check(&blocks, servers, &a);
        prop_assert_eq!(&a, &assign(&blocks, servers).unwrap());
        // At most one block exceeds a server's share. Small blocks can follow while the server has few requests.
        let share = blocks.iter().sum::<u64>().div_ceil(servers as u64);
        prop_assert!(a.servers.iter().all(|s| s.size <= 3 * share));
    }
}
