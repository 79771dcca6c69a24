//! The engine in docs/engines.md is the one that ships.

#[test]
fn the_tutorials_engine_is_the_shipped_one() {
    let page = include_str!("../../docs/engines.md");
    let shipped = include_str!("../src/engines/las.rs");
    let (_, after) = page.split_once("<!-- las.rs -->\n```rust\n").expect("the engine stands in the page");
    let (shown, _) = after.split_once("```\n").expect("a block has an end");
    assert_eq!(shown.trim_end(), shipped.trim_end(), "docs/engines.md shows another las.rs");
}
