//! The golden scenarios on a real YARN: the decisions of Rust and C must equal the answers of the ResourceManager's
//! REST API.

mod choice;
mod cluster;
mod player;
mod site;

use std::{collections::BTreeSet, fs, time::Instant};

use trainmaster_conformance::Action;

use crate::{
    choice::{Play, folder},
    cluster::{Cluster, available},
    player::Player,
    site::Site,
};

/// One cluster for all scenarios.
#[test]
fn containers_are_what_rust_and_c_decide() {
    if !available() {
        return;
    }
    // To run a single one.
    let only = std::env::var("TRAINMASTER_GOLDEN").unwrap_or_default();
    let plays: Vec<Play> = choice::all().into_iter().filter_map(Result::ok).collect();
    let plays: Vec<Play> = plays.into_iter().filter(|play| play.to_string().contains(&only)).collect();
    let servers = plays.iter().map(|play| play.scenario.server.len()).max().unwrap_or_default();
    let queues = plays.iter().flat_map(|play| &play.scenario.step).filter_map(|step| match &step.action {
        Action::Submit(job) => job.get("queue")?.as_str().map(str::to_owned),
        _ => None,
    });
    let queues: BTreeSet<String> = queues.chain(["default".to_owned()]).collect();
    let cluster = Cluster::start(servers, &queues);
    for play in &plays {
        let began = Instant::now();
        one(&cluster, play);
        println!("{play} agrees, {:.0?}", began.elapsed());
    }
}

fn one(cluster: &Cluster, play: &Play) {
    let golden = fs::read_to_string(folder().join(format!("golden/{play}.txt"))).unwrap();
    // The first block is the heading.
    let blocks: Vec<&str> = golden.split("\n\n").skip(1).collect();
    assert_eq!(blocks.len(), play.scenario.step.len(), "{play}: a block for each step");
    let mut player = Player::new(Site::new(cluster, &play.scenario, play.engine));
    for (step, block) in play.scenario.step.iter().zip(blocks) {
        // Actions that the daemon, YARN and ApplicationMasters perform themselves.
        if !matches!(step.action, Action::Decide(_) | Action::Seen(_) | Action::Gone(_)) {
            player.agree(&format!("{play}, before {} {:?}", step.at, step.action));
            player.act(&step.action);
        }
        player.expect(&step.action, block);
    }
    player.agree(&format!("{play}, at its end"));
    player.end();
}
