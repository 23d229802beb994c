//! Taking requests in, on their callers' threads.

use super::intake::Verdict;
use super::mailbox::Mailbox;
use super::prompt::{Prompt, first_limit};
use super::settle::{Asked, Input};
use super::shared::{Command, Shared};
use super::waker::Wakes;
use crate::core::{Mode, Request, Time};
use crate::error::Error;
use crate::options::{EmbedOptions, RequestOptions};
use std::sync::Arc;

impl Shared {
    /// Take a request for answers in, or refuse it through its mailbox.
    pub(super) fn submit(&self, prompt: Prompt, options: RequestOptions, mode: Mode) -> (Arc<Mailbox>, u64) {
        let at = self.clock.now();
        let n = options.n;
        let (request, words) = Request::draft(options, mode, &self.options, self.fresh_seed(at));
        let seed = request.sampling.seed;
        (self.take_in(at, request, Asked { input: Input::Prompt(prompt, Box::new(words)), n }), seed)
    }

    /// Take a request for embeddings in, likewise.
    pub(super) fn embed(&self, texts: Vec<Prompt>, options: &EmbedOptions) -> Arc<Mailbox> {
        let at = self.clock.now();
        self.take_in(at, Request::embedding(options), Asked { input: Input::Texts(texts), n: 1 })
    }

    fn take_in(&self, at: Time, request: Request, asked: Asked) -> Arc<Mailbox> {
        let n = asked.n;
        let due = first_limit(&request).map_or(Time::NEVER, |(limit, _)| at + limit);
        match self.with_intake(|intake| intake.arrive(at, request, asked)) {
            Verdict::Held(mailbox) => {
                self.watch_held(due);
                mailbox
            }
            Verdict::Refused(mailbox, error) => self.refuse(mailbox, &error),
            Verdict::Prepare(model, mut request, asked) => match self.settler.settle(*asked, &model, &mut request) {
                Ok(()) => self.enter(at, *request, n, due),
                Err(error) => {
                    let mailbox = self.with_intake(|intake| {
                        intake.release(&request.flow, n);
                        intake.name(at, &mut request, n)
                    });
                    self.refuse(mailbox, &error)
                }
            },
        }
    }

    fn enter(&self, at: Time, request: Request, n: u32, due: Time) -> Arc<Mailbox> {
        let entered = self.with_intake(|intake| {
            let (mailbox, entries) = intake.enter(at, request, n)?;
            let held = entries.len() < n as usize;
            if !entries.is_empty() {
                self.send(Command::Submit(entries));
            }
            Ok((mailbox, held))
        });
        match entered {
            Ok((mailbox, held)) => {
                if held {
                    self.watch_held(due);
                }
                mailbox
            }
            Err((mailbox, error)) => self.refuse(mailbox, &error),
        }
    }

    fn refuse(&self, mailbox: Arc<Mailbox>, error: &Error) -> Arc<Mailbox> {
        for id in mailbox.ids() {
            self.metrics.fail(error);
            let finished = mailbox.ended_outside(id, Err(error.clone()), self.clock.now());
            mailbox.finish(finished, &mut Wakes::default());
        }
        mailbox
    }
}
