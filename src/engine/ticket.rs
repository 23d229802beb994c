//! A caller's hold on one request.

use super::mailbox::Mailbox;
use super::shared::Shared;
use crate::core::RequestId;
use std::sync::Arc;

/// One request. Dropping it cancels the request, unless it has ended.
///
/// It does not keep the engine alive.
pub struct Ticket {
    mailbox: Arc<Mailbox>,
    seed: u64,
    shared: Arc<Shared>,
}

impl Ticket {
    pub(super) fn new(mailbox: Arc<Mailbox>, seed: u64, shared: Arc<Shared>) -> Self {
        Self { mailbox, seed, shared }
    }

    /// Which request.
    pub fn id(&self) -> RequestId {
        self.mailbox.id()
    }

    /// The seed of its draws, whoever chose it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where its output arrives; may outlive the ticket.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Cancel it. Returns at once; a request that has ended is left alone.
    pub fn cancel(&self) {
        if !self.shared.home.is_elsewhere() {
            self.shared.cancel_mailbox(&self.mailbox);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
