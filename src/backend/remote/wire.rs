//! Frames over a socket: a mark, a length, and what postcard makes of a message.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// What a frame begins with: who reads anything else is not talking to its like.
const MARK: [u8; 4] = *b"llb1";
const HEAD: usize = MARK.len() + 8;

/// The largest frame: a state of that size would not fit into memory twice. Unit: bytes.
const MAX_BYTES: u64 = 1 << 36;

/// A buffer grows by so much at most before the bytes are there. Unit: bytes.
const STEP: usize = 1 << 20;

/// How often who waits looks up. An abort is seen within this time.
const SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The other end is closed.
    Closed,
    /// It took too long.
    Late(Duration),
    /// What came is no message, or not the one that was to come.
    Garbage(String),
    /// Nobody wants it any more.
    Unwanted,
    /// The system failed.
    Broken(String),
}

/// Looks up from a wait, and says whether it goes on.
pub(super) type LookUp<'a> = &'a mut dyn FnMut() -> Result<(), Cut>;

/// Looks up and always goes on.
#[expect(clippy::unnecessary_wraps, reason = "others give up")]
pub(super) fn patient() -> Result<(), Cut> {
    Ok(())
}

/// How long something takes. Backends are of the world: what they wait for has a limit, and no Time to go by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "said above")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// One end.
#[derive(Debug)]
pub(super) struct Wire {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: UnixStream) -> Result<Self, Cut> {
        stream.set_nonblocking(true).map_err(|error| broken(&error))?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Send a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, look_up: LookUp<'_>) -> Result<(), Cut> {
        let mut frame = std::mem::take(&mut self.buffer);
        frame.clear();
        frame.extend(MARK);
        frame.extend([0; 8]);
        let mut frame = postcard::to_extend(message, frame).map_err(|error| Cut::Garbage(error.to_string()))?;
        let n_bytes = (frame.len() - HEAD) as u64;
        frame[MARK.len()..HEAD].copy_from_slice(&n_bytes.to_le_bytes());
        let sent = self.write(&frame, look_up);
        self.keep(frame);
        sent
    }

    /// Wait for a message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, look_up: LookUp<'_>) -> Result<T, Cut> {
        let mut frame = std::mem::take(&mut self.buffer);
        frame.clear();
        self.read(&mut frame, HEAD, look_up)?;
        let mut n_bytes = [0; 8];
        n_bytes.copy_from_slice(&frame[MARK.len()..HEAD]);
        let n_bytes = u64::from_le_bytes(n_bytes);
        if frame[..MARK.len()] != MARK || n_bytes > MAX_BYTES {
            return Err(Cut::Garbage("what came is no frame".into()));
        }
        frame.clear();
        self.read(&mut frame, n_bytes as usize, look_up)?;
        let message = postcard::take_from_bytes(&frame).map_err(|error| Cut::Garbage(error.to_string()));
        let (message, rest) = message?;
        if !rest.is_empty() {
            return Err(Cut::Garbage(format!("{} bytes behind a message", rest.len())));
        }
        self.keep(frame);
        Ok(message)
    }

    /// A buffer is used again, unless a state has made it large.
    fn keep(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= STEP {
            self.buffer = buffer;
        }
    }

    fn read(&mut self, into: &mut Vec<u8>, n_bytes: usize, look_up: LookUp<'_>) -> Result<(), Cut> {
        while into.len() < n_bytes {
            let n_there = into.len();
            into.resize(n_bytes.min(n_there + STEP), 0);
            let read = self.stream.read(&mut into[n_there..]);
            into.truncate(n_there + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(Cut::Closed),
                Ok(_) => {}
                Err(error) => self.pause(&error, PollFlags::IN, look_up)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8], look_up: LookUp<'_>) -> Result<(), Cut> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) => self.pause(&error, PollFlags::OUT, look_up)?,
            }
        }
        Ok(())
    }

    /// Wait until there is something to do, or for a slice.
    fn pause(&self, error: &std::io::Error, until: PollFlags, look_up: LookUp<'_>) -> Result<(), Cut> {
        let kind = error.kind();
        if kind == ErrorKind::Interrupted {
            return Ok(());
        }
        if matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
            return Err(Cut::Closed);
        }
        if kind != ErrorKind::WouldBlock {
            return Err(broken(error));
        }
        look_up()?;
        match poll(&mut [PollFd::new(&self.stream, until)], Some(&SLICE)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(broken(&error.into())),
        }
    }
}

fn broken(error: &std::io::Error) -> Cut {
    Cut::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Wire, UnixStream) {
        let (here, there) = UnixStream::pair().expect("a pair");
        (Wire::new(here).expect("a wire"), there)
    }

    #[test]
    fn a_message_larger_than_any_buffer_arrives_whole() {
        let (mut here, there) = pair();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || Wire::new(there)?.send(&sent, &mut patient));
            assert_eq!(here.receive::<Vec<u8>>(&mut patient), Ok(expected));
            assert_eq!(sender.join().expect("no panic"), Ok(()));
        });
    }

    #[test]
    fn what_is_no_message_is_said_to_be_none_and_takes_no_memory() {
        let huge = [&MARK[..], &(1_u64 << 35).to_le_bytes(), b"short"].concat();
        let long = [&MARK[..], &3_u64.to_le_bytes(), &[1, b'x', b'y']].concat();
        let cut_short = [&MARK[..], &2_u64.to_le_bytes(), &[9, b'x']].concat();
        for bytes in [b"warning: something\n".to_vec(), long, cut_short] {
            let (mut here, mut there) = pair();
            there.write_all(&bytes).expect("it fits");
            assert!(matches!(here.receive::<String>(&mut patient), Err(Cut::Garbage(_))), "{bytes:?}");
        }
        let (mut here, mut there) = pair();
        there.write_all(&huge).expect("it fits");
        drop(there);
        assert_eq!(here.receive::<String>(&mut patient), Err(Cut::Closed));
        assert!(here.buffer.capacity() <= 2 * STEP);
    }

    #[test]
    fn who_waits_is_asked_whether_it_goes_on_waiting() {
        let (mut here, _there) = pair();
        let mut n_looks = 0;
        let cut = here.receive::<String>(&mut || {
            n_looks += 1;
            if n_looks == 3 { Err(Cut::Late(Duration::ZERO)) } else { Ok(()) }
        });
        assert_eq!(cut, Err(Cut::Late(Duration::ZERO)));
        let stuffed = here.send(&vec![7_u8; 10 << 20], &mut || Err(Cut::Unwanted));
        assert_eq!(stuffed, Err(Cut::Unwanted), "nobody reads at the other end");
    }
}
