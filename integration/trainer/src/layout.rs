//! The holders of parameters: parameter servers by Optimus's parameter assignment over the network's blocks, or the
//! workers of a replica with a range each.

use std::ops::Range;

use trainmaster_core::paa::{self, PaaError};

/// Positions of all parameters, for one number of holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// For each holder its pieces as (first parameter, length), ascending.
    pieces: Vec<Vec<(usize, usize)>>,
    parameters: usize,
}

impl Layout {
    /// Distributes blocks of the given sizes over the servers.
    pub(crate) fn new(blocks: &[u64], servers: usize) -> Result<Self, PaaError> {
        let assignment = paa::assign(blocks, servers)?;
        let mut starts = Vec::with_capacity(blocks.len());
        let mut parameters = 0;
        for size in blocks {
            starts.push(parameters);
            parameters += *size as usize;
        }
        let mut pieces = vec![Vec::new(); servers];
        for piece in assignment.pieces {
            pieces[piece.server].push((starts[piece.block] + piece.offset as usize, piece.length as usize));
        }
        pieces.iter_mut().for_each(|list| list.sort_unstable());
        Ok(Self { pieces, parameters })
    }

    /// Contiguous ranges, which together are the whole.
    pub(crate) fn ranges(ranges: &[Range<usize>]) -> Self {
        let pieces = ranges.iter().map(|range| vec![(range.start, range.len())]).collect();
        Self { pieces, parameters: ranges.last().map_or(0, |range| range.end) }
    }

    /// The parameters of a range, counted from its start. Each holder has them in the same order, without gaps.
    pub(crate) fn within(&self, range: &Range<usize>) -> Self {
        let cut = |&(start, length): &(usize, usize)| {
            let (from, to) = (start.max(range.start), (start + length).min(range.end));
            (from < to).then(|| (from - range.start, to - from))
        };
        let pieces = self.pieces.iter().map(|list| list.iter().filter_map(cut).collect()).collect();
        Self { pieces, parameters: range.len() }
    }

    pub(crate) fn holders(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn parameters(&self) -> usize {
        self.parameters
    }

    /// Number of parameters of one holder.
    pub(crate) fn length(&self, holder: usize) -> usize {
        self.pieces[holder].iter().map(|(_, length)| length).sum()
    }

    /// Copies one holder's part from a whole vector.
    pub(crate) fn take<T: Copy>(&self, holder: usize, whole: &[T]) -> Vec<T> {
        let mut part = Vec::with_capacity(self.length(holder));
        for &(start, length) in &self.pieces[holder] {
            part.extend_from_slice(&whole[start..start + length]);
        }
        part
    }

    /// Copies one holder's part into a whole vector. False if the lengths don't match.
    pub(crate) fn put<T: Copy>(&self, holder: usize, part: &[T], whole: &mut [T]) -> bool {
        if part.len() != self.length(holder) || whole.len() != self.parameters {
            return false;
        }
        let mut from = 0;
        for &(start, length) in &self.pieces[holder] {
            whole[start..start + length].copy_from_slice(&part[from..from + length]);
            from += length;
        }
        true
    }

    /// Joins the parts of all holders, in their order. None if they don't match.
    pub(crate) fn join<'a, T: Copy + Default + 'a>(&self, parts: impl IntoIterator<Item = &'a [T]>) -> Option<Vec<T>> {
        let mut whole = vec![T::default(); self.parameters];
        let mut holders = 0..self.pieces.len();
        let fit = parts.into_iter().all(|part| holders.next().is_some_and(|holder| self.put(holder, part, &mut whole)));
        (fit && holders.is_empty()).then_some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole_again() {
        let blocks = [512, 32, 256, 8, 80, 10];
        let whole: Vec<u32> = (0..898).collect();
        for servers in 1..12 {
            let layout = Layout::new(&blocks, servers).unwrap();
            let mut copy = vec![0; 898];
            let parts: Vec<Vec<u32>> = (0..servers).map(|server| layout.take(server, &whole)).collect();
            for (server, part) in parts.iter().enumerate() {
                assert!(layout.put(server, part, &mut copy));
            }
            assert_eq!(copy, whole);
            assert!(!layout.put(0, &[1; 3], &mut copy));
            assert_eq!(layout.join(parts.iter().map(Vec::as_slice)), Some(copy));
            assert_eq!(layout.join(parts[1..].iter().map(Vec::as_slice)), None);
            // A server's part of the whole is its parts of two ranges, concatenated.
            let ranges = [0..544, 544..898];
            for (server, part) in parts.iter().enumerate() {
                let of = |range: &Range<usize>| layout.within(range).take(server, &whole[range.clone()]);
                assert_eq!([of(&ranges[0]), of(&ranges[1])].concat(), *part);
            }
        }
        let cut = Layout::new(&[6, 2], 2).unwrap();
        assert_eq!((cut.length(0), cut.length(1)), (4, 4), "the large block is cut");
        let ranges = Layout::ranges(&[0..544, 544..898]);
        assert_eq!((ranges.take(1, &whole).as_slice(), ranges.parameters()), (&whole[544..], 898));
    }
}
