//! The llama.cpp backend: the only room, but for the Python binding, with `unsafe` in it.
//!
//! What a `GGML_ASSERT` guards is checked in Rust before the call, because an abort takes the user's interpreter with
//! it; what can throw is called through the shim (`shim/`).

mod batch;
mod calibrate;
mod cells;
mod chat;
mod compilers;
mod context;
mod decode;
mod devices;
mod draws;
mod embed;
mod encoder;
mod ffi;
mod gguf;
mod load;
mod logs;
mod machine;
mod model;
mod ops;
mod params;
mod ram;
mod rpc;
mod score;
mod state;
mod template;
mod threads;
mod tokenizer;

pub use calibrate::{calibrate, settled, shape};
pub use chat::ChatParser;
pub use decode::LlamaBackend;
pub use encoder::{EncoderBackend, backend};
pub use load::{load, load_vocabulary, shards};
pub use logs::{
    Drained, Level, Line, drain as drain_logs, send_to as send_logs_to, set_level as set_log_level,
    take_over as take_over_log,
};
pub use machine::{available_memory, n_physical_cores, processor};
pub use model::Model;
pub use rpc::{Served, serve, supported as supports_rpc};
pub use score::score;
pub use template::try_template;

use llama_cpp_sys_2 as sys;
use std::sync::Once;

/// Set llama.cpp up, once in a process. Every way into it begins here.
fn init() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        logs::install();
        // Its end would free what models of other engines stand on: it lasts as long as the process.
        std::mem::forget(llama_cpp_2::llama_backend::LlamaBackend::init());
    });
}

/// Which llama.cpp this is, and what its kernels use of the processor.
pub fn build() -> String {
    init();
    // SAFETY: all three return texts that llama.cpp keeps.
    let (version, info, system) = unsafe {
        (
            ffi::text(sys::llama_version()).unwrap_or_default(),
            ffi::text(ffi::lb_build_info()).unwrap_or_default(),
            ffi::text(sys::llama_print_system_info()).unwrap_or_default(),
        )
    };
    // The sources come from a package, where no commit is known: its version names them.
    let info = if info == "b0-unknown" { "llama-cpp-sys-2 0.1.161".to_owned() } else { info };
    format!("llama.cpp {version} ({info}) | {}", system.trim().trim_end_matches('|').trim())
}
