//! Its beginning, and its end in peace.

use super::*;
use llama_batch::error::RpcReason;
use llama_batch::options::{Endpoint, Endpoints};
use std::process::{Command, Stdio};

fn load_error(role: &str, recipe: Recipe, options: StartOptions) -> String {
    let (engine, _) = loading(options, (launch(role), recipe.clone()), (launch(role), recipe));
    match engine.wait_ready(Some(PATIENCE)) {
        Err(Error::ModelLoad(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_isolated_backend_gives_what_one_in_this_process_does() {
    let (engine, pids) = started(options(2), fast());
    let here = crate::engine::text_of("Once upon a time", 40);
    let both = [submit(&engine, 40), submit(&engine, 40)];
    for ticket in &both {
        assert_eq!(crate::engine::read(ticket.mailbox()).0, here);
    }
    let pid = last(&pids);
    assert!(exists(pid));
    assert!(engine.close(true, None).unwrap());
    assert!(!exists(pid), "it ends with the engine, and nothing of it is left");
}

#[test]
fn a_process_that_dies_while_it_loads_is_a_load_error_with_its_last_words() {
    let why = load_error("exit", recipe(fast()), options(1));
    assert!(why.contains("exited with code 3") && why.contains("no room on the device"), "{why}");
}

#[test]
fn what_cannot_be_loaded_is_said_in_its_own_words() {
    let fails = Some("it is made of cheese".into());
    let cheese = Recipe::Simulated { config: Box::new(fast()), load: Duration::ZERO, fails, fault: None };
    let why = load_error("serve", cheese, options(1));
    assert!(why.contains("made of cheese"), "{why}");
}

#[test]
fn a_process_that_says_what_nobody_understands_is_ended() {
    let why = load_error("garbage", recipe(fast()), options(1));
    assert!(why.contains("cannot be read"), "{why}");
}

#[test]
fn a_process_that_says_nothing_is_ended_when_its_time_is_over() {
    let why = load_error("silent", recipe(fast()), StartOptions { backend_timeout: 0.3, ..options(1) });
    assert!(why.contains("backend_timeout"), "{why}");
}

#[test]
fn a_load_that_shows_life_takes_as_long_as_it_takes() {
    let slow = Recipe::Simulated { config: Box::new(fast()), load: Duration::from_secs(3), fails: None, fault: None };
    let how = (launch("serve"), slow);
    let (engine, _) = loading(StartOptions { backend_timeout: 2.5, ..options(1) }, how.clone(), how);
    assert_eq!(engine.wait_ready(Some(PATIENCE)), Ok(true));
}

#[test]
fn a_program_that_is_not_there_is_a_load_error() {
    let nowhere = Launch { program: "/nowhere/python".into(), ..launch("serve") };
    let how = (nowhere, recipe(fast()));
    let (engine, _) = loading(options(1), how.clone(), how);
    let error = engine.wait_ready(Some(PATIENCE)).unwrap_err();
    assert!(matches!(&error, Error::ModelLoad(why) if why.contains("/nowhere/python")), "{error:?}");
}

#[test]
fn it_ends_with_a_parent_that_is_killed() {
    let Launch { program, args, .. } = launch("parent");
    let parent = Command::new(program).args(args).env(ROLE, "parent").stdout(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&parent.stderr).into_owned();
    let pid: u32 = said.lines().next().unwrap_or_default().parse().expect("the number of a process");
    wait_until(|| !runs(pid));
}

#[test]
fn a_process_that_dies_as_it_loads_is_blamed_on_the_server_that_is_gone() {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let names = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let servers = names.iter().map(|name| Endpoint::parse(name).unwrap()).collect();
    let options = StartOptions { rpc_servers: Some(Endpoints(servers)), rpc_timeout: 0.2, ..options(1) };
    let recipe = Recipe::File { path: "none.gguf".into(), options: Box::new(options) };
    drop(listeners);
    let started = RemoteBackend::start(&launch("exit"), &recipe, PATIENCE, &|_| true);
    let Err(Error::Rpc { reason: RpcReason::Unreachable, endpoint, text }) = started.map(drop) else {
        panic!("it is a server's fault")
    };
    assert_eq!(endpoint, names[0]);
    assert!(text.contains("nobody listens there") && text.contains("no room on the device"), "{text}");
}
