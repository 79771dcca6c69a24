//! A small real data set: Fisher's irises (see `data/README.md` for its source and licence).

use std::sync::LazyLock;

/// Number of trained flowers. Every fifth of the set is held out.
pub(crate) const TRAINED: u64 = 120;
/// Number of held-out flowers, equal for all species.
pub(crate) const HELD_OUT: u64 = 30;
/// Number of species.
pub(crate) const CLASSES: u32 = 3;
/// Length and width of sepal and petal.
pub(crate) const FEATURES: u32 = 4;

/// One flower: its measures, each with mean 0 and variance 1 over the set, and its species.
pub(crate) type Flower = ([f32; FEATURES as usize], usize);

/// All flowers in the file's order, by species.
static IRIS: LazyLock<Vec<Flower>> = LazyLock::new(|| standardised(include_str!("../data/iris.csv")));

/// One of the trained flowers.
pub(crate) fn trained(number: u64) -> &'static Flower {
    let number = number % TRAINED;
    &IRIS[(number / 4 * 5 + number % 4) as usize]
}

/// One of the held-out flowers.
pub(crate) fn held_out(number: u64) -> &'static Flower {
    &IRIS[(number % HELD_OUT * 5 + 4) as usize]
}

fn standardised(text: &str) -> Vec<Flower> {
    let rows = text.lines().skip(1).map(|line| {
        let mut numbers = line.split(',').map(|number| number.parse::<f64>().expect("a table that is compiled in"));
        let measures: [f64; FEATURES as usize] = std::array::from_fn(|_| numbers.next().expect("four measures"));
        (measures, numbers.next().expect("a species") as usize)
    });
    let rows: Vec<_> = rows.collect();
    let mean = |of: &dyn Fn(&[f64; 4]) -> f64| rows.iter().map(|(row, _)| of(row)).sum::<f64>() / rows.len() as f64;
    let scales: [(f64, f64); FEATURES as usize] = std::array::from_fn(|at| {
        let centre = mean(&|row| row[at]);
        (centre, libm::sqrt(mean(&|row| (row[at] - centre) * (row[at] - centre))))
    });
    let scaled = |row: &[f64; 4]| std::array::from_fn(|at| ((row[at] - scales[at].0) / scales[at].1) as f32);
    rows.iter().map(|(row, species)| (scaled(row), *species)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flower_is_trained_or_held_out() {
        let all = (0..TRAINED).map(trained).chain((0..HELD_OUT).map(held_out));
        let mut places: Vec<_> = all.map(std::ptr::from_ref).collect();
        places.sort_unstable();
        assert_eq!(places, IRIS.iter().map(std::ptr::from_ref).collect::<Vec<_>>());
        for species in 0..CLASSES as usize {
            assert_eq!((0..HELD_OUT).filter(|number| held_out(*number).1 == species).count(), 10);
        }
    }

    #[test]
    fn the_table_is_whole() {
        assert_eq!(IRIS.len() as u64, TRAINED + HELD_OUT);
        for species in 0..CLASSES as usize {
            assert_eq!(IRIS.iter().filter(|(_, of)| *of == species).count(), 50);
        }
        for at in 0..FEATURES as usize {
            let sum: f32 = IRIS.iter().map(|(measures, _)| measures[at]).sum();
            let squares: f32 = IRIS.iter().map(|(measures, _)| measures[at] * measures[at]).sum();
            assert!(sum.abs() < 1e-3 && (squares / 150.0 - 1.0).abs() < 1e-4, "{at}: {sum} {squares}");
        }
        // Means in cm, as published: 5.843, 3.057, 3.758 and 1.199.
        let text = include_str!("../data/iris.csv");
        for (at, published) in [5.843, 3.057, 3.758, 1.199].into_iter().enumerate() {
            let column = text.lines().skip(1).map(|line| line.split(',').nth(at).unwrap().parse::<f64>().unwrap());
            assert!((column.sum::<f64>() / 150.0 - published).abs() < 5e-4, "{at}");
        }
    }
}
