//! Which devices a model is spread over, and in which order: llama.cpp's own rule, said where it can be tested, so that
//! `tensor_split` and `main_gpu` mean what the order here says.

use crate::error::Error;
use crate::options::{SplitMode, StartOptions};

/// What a device is to the placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A server's.
    Remote,
    /// An accelerator with memory of its own.
    Accelerator,
    /// An accelerator that shares the machine's memory.
    Integrated,
    /// The processor, which computes whatever is on no other device.
    Processor,
}

/// A device that may hold a part of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What the option `devices` calls it; a server's is `RPC0[host:port]`, or `RPC0` for short.
    pub name: String,
    /// A server's also has a name that does not count through the servers: `host:port/0`.
    pub alias: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Where the hardware sits, if that is known: two backends may know the same one.
    pub hardware: Option<String>,
}

impl Candidate {
    fn is_called(&self, name: &str) -> bool {
        let short = self.name.split('[').next().unwrap_or_default();
        [Some(&*self.name), Some(short), self.alias.as_deref()]
            .iter()
            .flatten()
            .any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// The devices of a model, as numbers of `candidates`, in llama.cpp's order: as `devices` has them, or else servers
/// first, then accelerators, and integrated ones where there is no other.
///
/// # Errors
/// [`Error::Option`]: a name that no device has (with those there are), one that is given twice, or a `main_gpu`,
/// `tensor_split` or `split_mode` that does not suit these devices.
pub fn place(candidates: &[Candidate], options: &StartOptions) -> Result<Vec<usize>, Error> {
    let chosen = match &options.devices {
        Some(names) => named(candidates, names)?,
        None => found(candidates),
    };
    check(candidates, &chosen, options)?;
    Ok(chosen)
}

fn named(candidates: &[Candidate], names: &[String]) -> Result<Vec<usize>, Error> {
    let mut chosen = Vec::new();
    for name in names {
        let Some(at) = candidates.iter().position(|candidate| candidate.is_called(name)) else {
            let known = listed(candidates.iter());
            return Err(Error::Option(format!("devices: there is no {name:?}; there are {known}")));
        };
        if chosen.contains(&at) {
            return Err(Error::Option(format!("devices: {name:?} is given twice")));
        }
        if candidates[at].kind != Kind::Processor {
            chosen.push(at);
        }
    }
    Ok(chosen)
}

fn found(candidates: &[Candidate]) -> Vec<usize> {
    let is_known = |at: usize| {
        let here = &candidates[at];
        here.hardware.is_some() && candidates[..at].iter().any(|c| c.kind == here.kind && c.hardware == here.hardware)
    };
    let of = |kind| (0..candidates.len()).filter(move |at| candidates[*at].kind == kind && !is_known(*at));
    let has_accelerator = of(Kind::Accelerator).next().is_some();
    let integrated = of(Kind::Integrated).filter(|_| !has_accelerator);
    of(Kind::Remote).chain(of(Kind::Accelerator)).chain(integrated).collect()
}

fn check(candidates: &[Candidate], chosen: &[usize], options: &StartOptions) -> Result<(), Error> {
    let order = || listed(chosen.iter().map(|at| &candidates[*at]));
    let is_remote = chosen.iter().any(|at| candidates[*at].kind == Kind::Remote);
    if is_remote && matches!(options.split_mode, SplitMode::Row | SplitMode::Tensor) {
        let mode = options.split_mode.word();
        return Err(Error::Option(format!(
            "split_mode={mode:?} is not for the devices of RPC servers; \"layer\" spreads layers over {}",
            order()
        )));
    }
    if options.split_mode == SplitMode::None && !chosen.is_empty() && options.main_gpu as usize >= chosen.len() {
        return Err(Error::Option(format!(
            "main_gpu={} is no device of the model, which are, from 0, {}",
            options.main_gpu,
            order()
        )));
    }
    let n_shares = options.tensor_split.as_ref().map_or(0, Vec::len);
    if n_shares > chosen.len() && !chosen.is_empty() {
        return Err(Error::Option(format!(
            "tensor_split has {n_shares} shares for {} devices, which are, in this order, {}",
            chosen.len(),
            order()
        )));
    }
    Ok(())
}

fn listed<'a>(candidates: impl Iterator<Item = &'a Candidate>) -> String {
    candidates.map(|candidate| candidate.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Kind, place};
    use crate::error::Error;
    use crate::options::{SplitMode, StartOptions};

    fn candidates() -> Vec<Candidate> {
        let of = |name: &str, kind| Candidate { name: name.to_owned(), alias: None, kind, hardware: None };
        let served = |name: &str, alias: &str| Candidate { alias: Some(alias.to_owned()), ..of(name, Kind::Remote) };
        vec![
            served("RPC0[a:1]", "a:1/0"),
            served("RPC1[b:2]", "b:2/0"),
            of("CUDA0", Kind::Accelerator),
            of("Vulkan1", Kind::Integrated),
            of("CPU", Kind::Processor),
        ]
    }

    fn with(words: &[&str]) -> StartOptions {
        let devices = Some(words.iter().map(|word| (*word).to_owned()).collect());
        StartOptions { devices, ..StartOptions::default() }
    }

    fn refusal(options: &StartOptions) -> String {
        match place(&candidates(), options) {
            Err(Error::Option(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn servers_come_first_and_integrated_accelerators_only_where_there_is_no_other() {
        assert_eq!(place(&candidates(), &StartOptions::default()), Ok(vec![0, 1, 2]));
        let without: Vec<_> = candidates().into_iter().filter(|c| c.kind != Kind::Accelerator).collect();
        assert_eq!(place(&without, &StartOptions::default()), Ok(vec![0, 1, 2]));
        assert_eq!(without[2].kind, Kind::Integrated);
    }

    #[test]
    fn an_accelerator_that_two_backends_know_is_taken_once() {
        let card = |name: &str| Candidate {
            name: name.to_owned(),
            alias: None,
            kind: Kind::Accelerator,
            hardware: Some("pci:1".into()),
        };
        let twice = [card("CUDA0"), card("Vulkan0")];
        assert_eq!(place(&twice, &StartOptions::default()), Ok(vec![0]));
        assert_eq!(place(&twice, &with(&["Vulkan0"])), Ok(vec![1]));
    }

    #[test]
    fn devices_are_taken_in_the_order_they_are_named_in() {
        let placed = |words| place(&candidates(), &with(words));
        assert_eq!(placed(&["cuda0", "RPC1", "rpc0[A:1]", "CPU"]), Ok(vec![2, 1, 0]));
        assert_eq!(placed(&["b:2/0", "CUDA0", "A:1/0"]), Ok(vec![1, 2, 0]));
        assert_eq!(placed(&["CPU"]), Ok(vec![]));
        assert_eq!(placed(&[]), Ok(vec![]));
    }

    #[test]
    fn an_unknown_device_is_refused_with_those_there_are() {
        let unknown = refusal(&with(&["RPC7"]));
        assert!(unknown.contains("\"RPC7\"") && unknown.contains("RPC0[a:1], RPC1[b:2], CUDA0"), "{unknown}");
        for again in ["RPC0[a:1]", "a:1/0"] {
            let twice = refusal(&with(&["RPC0", again]));
            assert!(twice.contains("twice"), "{twice}");
        }
    }

    #[test]
    fn shares_and_the_main_device_are_checked_against_the_order() {
        let split = StartOptions { tensor_split: Some(vec![1.0; 4]), ..StartOptions::default() };
        assert!(refusal(&split).contains("in this order, RPC0[a:1], RPC1[b:2], CUDA0"));
        let main = StartOptions { split_mode: SplitMode::None, main_gpu: 3, ..StartOptions::default() };
        assert!(refusal(&main).contains("from 0, RPC0[a:1]"));
        assert!(place(&candidates(), &StartOptions { main_gpu: 2, ..main }).is_ok());
        for split_mode in [SplitMode::Row, SplitMode::Tensor] {
            assert!(refusal(&StartOptions { split_mode, ..StartOptions::default() }).contains("not for the devices"));
            let local = StartOptions { split_mode, ..with(&["CUDA0"]) };
            assert!(place(&candidates(), &local).is_ok());
        }
    }
}
