//! Types of GPU relative to each other, over all models.

use std::collections::BTreeMap;

use super::model::TypeFactor;

/// How fast types of GPU compute relative to each other, by the median of the models that were measured on several.
///
/// A model's speed on a type that it never had follows from those that it had. That is a rough guess, since models
/// differ: of 26 models and batches on one K80, P100 or V100 (`gavel_throughputs.json`), predicted from a single type
/// by models of other families, the median error is 25 to 51 %, and the faster type is told in 18 to 26 of 26 cases.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{TypeFactor, TypeSpeeds};
///
/// let of = |server_type, factor| TypeFactor { server_type, factor };
/// let measured = [vec![of(1, 1.0), of(2, 3.0)], vec![of(1, 2.0), of(2, 6.0)]];
/// let types = TypeSpeeds::of(&measured);
/// assert!((types.factor(&[of(1, 0.5)], 2) - 1.5).abs() < 1e-12);
/// assert_eq!(types.factor(&[of(1, 0.5)], 9), 1.0); // nothing is known of it
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TypeSpeeds(BTreeMap<u16, f64>);

impl TypeSpeeds {
    /// The medians of the ratios to the type that most models have. A mean would let one model with false reports
    /// decide it. Each item holds a model's factors.
    pub fn of<'a, M: AsRef<[TypeFactor]> + ?Sized + 'a>(models: impl IntoIterator<Item = &'a M>) -> Self {
        let models: Vec<&[TypeFactor]> = models.into_iter().map(AsRef::as_ref).filter(|of| of.len() > 1).collect();
        let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
        for known in models.iter().copied().flatten() {
            *counts.entry(known.server_type).or_default() += 1;
        }
        // Of several, the last one. Which one it is doesn't matter.
        let Some((&base, _)) = counts.iter().max_by_key(|(_, count)| **count) else { return Self::default() };
        let mut ratios: BTreeMap<u16, Vec<f64>> = BTreeMap::new();
        for of in models {
            let Some(base) = of.iter().find(|known| known.server_type == base) else { continue };
            for known in of {
                let ratio = libm::log(known.factor / base.factor);
                if ratio.is_finite() {
                    ratios.entry(known.server_type).or_default().push(ratio);
                }
            }
        }
        let median = |mut of: Vec<f64>| {
            of.sort_by(f64::total_cmp);
            (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0
        };
        Self(ratios.into_iter().map(|(kind, of)| (kind, libm::exp(median(of)))).collect())
    }

    /// The factor of a type, for a model with these known factors: its own, or else what the other models show of the
    /// type. 1 if nothing is known.
    pub fn factor(&self, known: &[TypeFactor], server_type: u16) -> f64 {
        if let Some(own) = known.iter().find(|known| known.server_type == server_type) {
            return own.factor;
        }
        let Some(wanted) = self.0.get(&server_type) else { return 1.0 };
        let ratios = known.iter().filter_map(|own| Some(libm::log(own.factor / self.0.get(&own.server_type)?)));
        let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        match ratios.len() {
            // For a model without a measurement, only the proportions matter.
            0 if known.is_empty() => *wanted,
            0 => 1.0,
            count => wanted * libm::exp(ratios.iter().sum::<f64>() / count as f64),
        }
    }
}
