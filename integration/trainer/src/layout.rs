//! Which parameter server holds which parameters: Optimus' parameter assignment over the network's blocks.

use trainmaster_core::paa::{self, PaaError};

/// Where every parameter lives, for one number of parameter servers.
///
/// # Examples
///
/// ```
/// use trainmaster_trainer::layout::Layout;
///
/// let layout = Layout::new(&[6, 2], 2)?; // the large block is cut
/// let model = [0, 1, 2, 3, 4, 5, 6, 7];
/// let parts = [layout.take(0, &model), layout.take(1, &model)];
/// assert_eq!(parts.each_ref().map(Vec::len), [4, 4]);
/// let mut again = [9; 8];
/// assert!(layout.put(0, &parts[0], &mut again) && layout.put(1, &parts[1], &mut again));
/// assert_eq!(again, model);
/// # Ok::<(), trainmaster_core::paa::PaaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Per server: its pieces as (first parameter, length), ascending.
    pieces: Vec<Vec<(usize, usize)>>,
    parameters: usize,
}

impl Layout {
    /// Spreads blocks of the given sizes over the servers.
    ///
    /// # Errors
    ///
    /// [`PaaError`] for no servers.
    pub fn new(blocks: &[u64], servers: usize) -> Result<Self, PaaError> {
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

    /// Number of parameters on all servers.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// Number of parameters on one server.
    #[must_use]
    pub fn length(&self, server: usize) -> usize {
        self.pieces[server].iter().map(|(_, length)| length).sum()
    }

    /// Copies one server's part out of a whole vector.
    #[must_use]
    pub fn take<T: Copy>(&self, server: usize, whole: &[T]) -> Vec<T> {
        let mut part = Vec::with_capacity(self.length(server));
        for &(start, length) in &self.pieces[server] {
            part.extend_from_slice(&whole[start..start + length]);
        }
        part
    }

    /// Copies one server's part into a whole vector; false if the lengths don't fit.
    #[must_use]
    pub fn put<T: Copy>(&self, server: usize, part: &[T], whole: &mut [T]) -> bool {
        if part.len() != self.length(server) || whole.len() != self.parameters {
            return false;
        }
        let mut from = 0;
        for &(start, length) in &self.pieces[server] {
            whole[start..start + length].copy_from_slice(&part[from..from + length]);
            from += length;
        }
        true
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
            for server in 0..servers {
                assert!(layout.put(server, &layout.take(server, &whole), &mut copy));
            }
            assert_eq!(copy, whole);
            assert!(!layout.put(0, &[1; 3], &mut copy));
        }
    }
}
