//! What goes wrong in the simulation: what a test injects, and what chance does.

use super::{Fault, FaultRates, Latency, SimBackend};
use crate::core::{GOLDEN, PassStatus, mix};

impl SimBackend {
    /// Let passes take another time from now on.
    pub fn set_latency(&mut self, latency: Latency) {
        self.config.latency = latency;
    }

    /// Whether a fault hits: an injected one that fits, or by chance.
    pub(super) fn strikes(&mut self, fits: impl Fn(&Fault) -> bool, rate: impl Fn(&FaultRates) -> u32) -> bool {
        if let Some(at) = self.injected.iter().position(fits) {
            self.injected.remove(at);
            return true;
        }
        let rate = rate(&self.config.fault_rates);
        rate > 0 && self.chance() % 1000 < u64::from(rate)
    }

    fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(GOLDEN);
        mix(self.random)
    }

    /// The fault that hits this pass, if any, with the number of rows that stay.
    pub(super) fn pass_fault(&mut self, n_rows: usize) -> Option<(PassStatus, usize)> {
        if self.strikes(|fault| *fault == Fault::KvFull, |rates| rates.kv_full) {
            return Some((PassStatus::KvFull, 0));
        }
        let injected = self.injected.iter().position(|fault| matches!(fault, Fault::Fail(_)));
        let code = match injected.and_then(|at| self.injected.remove(at)) {
            Some(Fault::Fail(code)) => code,
            Some(
                Fault::KvFull
                | Fault::RefuseOpen
                | Fault::RefuseCopy
                | Fault::RefuseTrim
                | Fault::RefuseSave
                | Fault::RefuseRestore
                | Fault::RefuseStore
                | Fault::RefuseLoad
                | Fault::FailDraw
                | Fault::Panic,
            )
            | None => {
                let rate = u64::from(self.config.fault_rates.fail);
                if rate == 0 || self.chance() % 1000 >= rate {
                    return None;
                }
                [2, -1, -2, -3][(self.chance() % 4) as usize]
            }
        };
        // Earlier ubatches stay after an abort or a failed computation; an invalid batch changes nothing.
        let n_kept = if code == -1 { 0 } else { (self.chance() % (n_rows as u64)) as usize };
        Some((PassStatus::Failed { code, reason: "injected".into() }, n_kept))
    }
}
