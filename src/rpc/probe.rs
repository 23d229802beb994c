//! Proves a server: it answers in time, speaks this llama.cpp's protocol, and has devices.
//!
//! The protocol is that of `ggml/src/ggml-rpc/ggml-rpc.cpp`: a command's byte, the length of what comes with it, and that;
//! an answer is its length, and itself. Numbers are little-endian, of 8 bytes where nothing else is said.

use super::failure;
use crate::error::{Error, RpcReason};
use crate::options::Endpoint;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Major, minor and patch of the protocol that llama.cpp's client speaks; the shim's compiler compares them.
pub const PROTOCOL: [u8; 3] = [7, 0, 0];

const GET_DEVICE_MEMORY: u8 = 11;
const HELLO: u8 = 14;
const DEVICE_COUNT: u8 = 15;
/// What a client says of other transports than TCP: nothing.
const CAPABILITIES: [u8; 24] = [0; 24];
/// Devices of one server that are believed.
const MAX_DEVICES: u32 = 256;

/// The memory of a device. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What is free.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// A server that was proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its version of the protocol.
    pub version: [u8; 3],
    /// Its devices, in its order.
    pub devices: Vec<Memory>,
}

/// The address of an endpoint, as ggml would find it.
///
/// # Errors
/// [`Error::Rpc`] where the name leads to no IPv4 address.
pub fn resolve(endpoint: &Endpoint) -> Result<SocketAddrV4, Error> {
    if let Ok(address) = endpoint.host.parse::<Ipv4Addr>() {
        return Ok(SocketAddrV4::new(address, endpoint.port));
    }
    let unknown =
        |why: &str| failure(RpcReason::Unreachable, endpoint, &format!("its name leads to no IPv4 address{why}"));
    let found = (endpoint.host.as_str(), endpoint.port).to_socket_addrs();
    found.map_err(|error| unknown(&format!(" ({error})")))?.find_map(v4).ok_or_else(|| unknown(""))
}

fn v4(address: SocketAddr) -> Option<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    }
}

/// Ask a server who it is. `limit` bounds all of it.
///
/// # Errors
/// [`Error::Rpc`] names the endpoint: `unreachable`; `busy` where it accepts and says nothing; `protocol_mismatch`;
/// `no_devices`.
pub fn prove(endpoint: &Endpoint, address: SocketAddrV4, limit: Duration) -> Result<Server, Error> {
    let deadline = now() + limit;
    let stream = reach(endpoint, address, limit)?;
    let mut line = Line { stream, deadline, limit, endpoint };
    let version = line.hello()?;
    let count = line.ask::<4>(DEVICE_COUNT, &[])?;
    let n_devices = u32::from_le_bytes(count);
    if n_devices == 0 {
        return Err(failure(RpcReason::NoDevices, endpoint, "it has no devices"));
    }
    if n_devices > MAX_DEVICES {
        return Err(line.mismatch(&format!("it says that it has {n_devices} devices")));
    }
    let devices = (0..n_devices).map(|device| line.memory(device)).collect::<Result<_, _>>()?;
    Ok(Server { version, devices })
}

/// Connect, and no more.
pub(super) fn reach(endpoint: &Endpoint, address: SocketAddrV4, limit: Duration) -> Result<TcpStream, Error> {
    TcpStream::connect_timeout(&address.into(), limit).map_err(|error| {
        let why = if error.kind() == ErrorKind::ConnectionRefused {
            "nobody listens there (connection refused)".to_owned()
        } else if is_late(&error) {
            let limit = limit.as_secs_f64();
            format!("no connection in {limit} s: no such machine, a firewall, or clients that wait already")
        } else {
            format!("no connection: {error}")
        };
        failure(RpcReason::Unreachable, endpoint, &why)
    })
}

/// The clock that a socket's time limits go by.
#[expect(clippy::disallowed_methods, reason = "the caller waits for a socket, and no engine is there yet")]
fn now() -> Instant {
    Instant::now()
}

/// Whether a socket's time limit passed.
fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// A connection with a deadline.
struct Line<'a> {
    stream: TcpStream,
    deadline: Instant,
    limit: Duration,
    endpoint: &'a Endpoint,
}

impl Line<'_> {
    fn hello(&mut self) -> Result<[u8; 3], Error> {
        self.say(HELLO, &CAPABILITIES)?;
        let length = u64::from_le_bytes(self.hear()?);
        // Three bytes of version are as old as the command; what stands behind them has grown.
        if !(3..=64).contains(&length) {
            return Err(self.mismatch("what answers does not speak llama.cpp's RPC"));
        }
        let version: [u8; 3] = self.hear()?;
        let [major, minor, _] = version;
        if length != 4 + CAPABILITIES.len() as u64 || major != PROTOCOL[0] || minor > PROTOCOL[1] {
            let said = |[major, minor, patch]: [u8; 3]| format!("{major}.{minor}.{patch}");
            return Err(self.mismatch(&format!(
                "it speaks version {} of llama.cpp's RPC, and this is {}; run the worker of this package there",
                said(version),
                said(PROTOCOL)
            )));
        }
        let _: [u8; 25] = self.hear()?;
        Ok(version)
    }

    fn memory(&mut self, device: u32) -> Result<Memory, Error> {
        let answer = self.ask::<16>(GET_DEVICE_MEMORY, &device.to_le_bytes())?;
        let number = |half: &[u8]| half.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let (free, total) = answer.split_at(8);
        Ok(Memory { free: number(free), total: number(total) })
    }

    /// A command whose answer has a known length.
    fn ask<const N: usize>(&mut self, command: u8, input: &[u8]) -> Result<[u8; N], Error> {
        self.say(command, input)?;
        if u64::from_le_bytes(self.hear()?) != N as u64 {
            return Err(self.mismatch("its answer is not of llama.cpp's RPC"));
        }
        self.hear()
    }

    fn say(&mut self, command: u8, input: &[u8]) -> Result<(), Error> {
        let mut message = vec![command];
        message.extend((input.len() as u64).to_le_bytes());
        message.extend(input);
        let left = self.left()?;
        let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(&message));
        sent.map_err(|error| self.broken(&error))
    }

    fn hear<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        let mut n_read = 0;
        while n_read < N {
            let left = self.left()?;
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut bytes[n_read..]));
            match read {
                Ok(0) => return Err(self.closed()),
                Ok(n) => n_read += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(bytes)
    }

    /// What is left of the time.
    fn left(&self) -> Result<Duration, Error> {
        let left = self.deadline.saturating_duration_since(now());
        if left.is_zero() { Err(self.silent()) } else { Ok(left) }
    }

    fn broken(&self, error: &std::io::Error) -> Error {
        if is_late(error) {
            return self.silent();
        }
        if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) {
            return self.closed();
        }
        failure(RpcReason::Unreachable, self.endpoint, &format!("the connection broke: {error}"))
    }

    fn silent(&self) -> Error {
        let what = format!(
            "it accepts connections and did not answer in {} s: it serves another client (one at a time), or hangs",
            self.limit.as_secs_f64()
        );
        failure(RpcReason::Busy, self.endpoint, &what)
    }

    fn closed(&self) -> Error {
        self.mismatch(
            "it closed the connection instead of answering: another version of llama.cpp's RPC, another program, or a \
             tunnel with nobody behind it",
        )
    }

    fn mismatch(&self, what: &str) -> Error {
        failure(RpcReason::ProtocolMismatch, self.endpoint, what)
    }
}
