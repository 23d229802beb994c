//! Servers are proved before ggml meets them: whatever is at the other end, the answer is typed and in time.

use llama_batch::error::{Error, RpcReason};
use llama_batch::options::Endpoint;
use llama_batch::rpc::{Memory, Met, PROTOCOL, Server, examine, knock, prove, resolve};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_millis(300);

/// What a stand-in makes of its one client, and what the client makes of it.
fn meet(serve: impl FnOnce(TcpStream) + Send + 'static) -> Result<Server, RpcReason> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    let server = thread::Builder::new().name("stand-in".into());
    let server = server.spawn(move || serve(listener.accept().unwrap().0)).unwrap();
    let found = prove(&endpoint, resolve(&endpoint).unwrap(), LIMIT);
    server.join().unwrap();
    found.map_err(|error| match error {
        Error::Rpc { reason, endpoint: named, text } => {
            assert_eq!(named, endpoint.to_string());
            assert!(text.contains(&named), "{text}");
            reason
        }
        other => panic!("{other:?}"),
    })
}

/// Read one command: its byte, and what came with it.
fn command(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    let mut input = vec![0; u64::from_le_bytes(head[1..].try_into().unwrap()) as usize];
    stream.read_exact(&mut input).unwrap();
    (head[0], input)
}

fn answer(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(&(bytes.len() as u64).to_le_bytes()).unwrap();
    stream.write_all(bytes).unwrap();
}

fn hello(stream: &mut TcpStream, version: [u8; 3], length: usize) {
    assert_eq!(command(stream), (14, vec![0; 24]));
    let mut said = version.to_vec();
    said.resize(length, 0);
    answer(stream, &said);
}

#[test]
fn a_server_says_its_version_and_the_memory_of_each_device() {
    let found = meet(|mut stream| {
        hello(&mut stream, PROTOCOL, 28);
        assert_eq!(command(&mut stream), (15, vec![]));
        answer(&mut stream, &2_u32.to_le_bytes());
        for device in 0..2_u32 {
            assert_eq!(command(&mut stream), (11, device.to_le_bytes().to_vec()));
            let numbers = [u64::from(device) + 5, u64::MAX - 1];
            answer(&mut stream, &numbers.map(u64::to_le_bytes).concat());
        }
    });
    let memory = |free| Memory { free, total: u64::MAX - 1 };
    assert_eq!(found, Ok(Server { version: PROTOCOL, devices: vec![memory(5), memory(6)] }));
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_busy() {
    let hold = |stream: TcpStream| {
        thread::sleep(LIMIT * 2);
        drop(stream);
    };
    assert_eq!(meet(hold), Err(RpcReason::Busy));
}

#[test]
fn an_answer_that_never_ends_is_given_up_in_time() {
    let drip = |mut stream: TcpStream| {
        for byte in 28_u64.to_le_bytes() {
            thread::sleep(LIMIT / 4);
            if stream.write_all(&[byte]).is_err() {
                break;
            }
        }
    };
    assert_eq!(meet(drip), Err(RpcReason::Busy));
}

#[test]
fn what_speaks_something_else_is_a_mismatch() {
    let says = |words: &'static [u8]| {
        move |mut stream: TcpStream| {
            command(&mut stream);
            stream.write_all(words).unwrap();
        }
    };
    for words in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"\0\0\0\0\0\0\0\0", &[0xff; 64]]
    {
        assert_eq!(meet(says(words)), Err(RpcReason::ProtocolMismatch), "{words:?}");
    }
}

#[test]
fn another_version_is_a_mismatch() {
    let [major, minor, patch] = PROTOCOL;
    for (version, length) in
        [([major + 1, 0, 0], 28), ([major - 1, 0, 0], 28), ([major, minor + 1, patch], 28), ([3, 6, 0], 3)]
    {
        let found = meet(move |mut stream| hello(&mut stream, version, length));
        assert_eq!(found, Err(RpcReason::ProtocolMismatch), "{version:?}");
    }
}

#[test]
fn a_server_without_devices_or_with_impossibly_many_is_refused() {
    let with = |n: u32| {
        meet(move |mut stream| {
            hello(&mut stream, PROTOCOL, 28);
            command(&mut stream);
            answer(&mut stream, &n.to_le_bytes());
        })
    };
    assert_eq!(with(0), Err(RpcReason::NoDevices));
    assert_eq!(with(u32::MAX), Err(RpcReason::ProtocolMismatch));
}

#[test]
fn a_closed_port_and_an_unknown_name_are_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    drop(listener);
    let closed = prove(&endpoint, resolve(&endpoint).unwrap(), LIMIT).unwrap_err();
    assert!(closed.to_string().contains("nobody listens there"), "{closed}");
    assert_eq!((closed.code(), closed.retryable()), ("rpc_unavailable", true));
    let nowhere = resolve(&Endpoint::parse("no-such-host.invalid:1").unwrap()).unwrap_err();
    assert!(matches!(nowhere, Error::Rpc { reason: RpcReason::Unreachable, .. }), "{nowhere:?}");
}

#[test]
fn a_server_in_use_is_knocked_at_and_a_free_one_is_asked() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = [&gone, &silent].map(|listener| listener.local_addr().unwrap().to_string());
    drop(gone);
    let met = endpoints.clone().map(|endpoint| Met::new(&Endpoint::parse(&endpoint).unwrap()));
    for (seen, expected) in [
        (knock(&met, LIMIT), [Some(RpcReason::Unreachable), None]),
        (examine(&met, LIMIT), [Some(RpcReason::Unreachable), Some(RpcReason::Busy)]),
    ] {
        assert_eq!(seen.iter().map(|sight| sight.endpoint.clone()).collect::<Vec<_>>(), endpoints);
        let reasons = seen.iter().map(|sight| match &sight.trouble {
            Some(Error::Rpc { reason, .. }) => Some(*reason),
            None => None,
            other => panic!("{other:?}"),
        });
        assert_eq!(reasons.collect::<Vec<_>>(), expected);
    }
    assert!(knock(&[], LIMIT).is_empty());
}
