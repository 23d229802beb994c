//! What llama.cpp logs: a bounded queue that Python drains, and the errors of the thread that is loading a model.
//! Nothing is printed.

use super::ffi;
use llama_cpp_sys_2 as sys;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Lines that wait to be drained at most; then the oldest go.
const CAPACITY: usize = 1024;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For llama.cpp's developers.
    Debug,
    /// What it does.
    Info,
    /// What it did not expect.
    Warn,
    /// What failed.
    Error,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its level.
    pub level: Level,
    /// The text, without the line break.
    pub text: String,
}

/// What waited in the queue.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// Oldest first.
    pub lines: Vec<Line>,
    /// Lines that were lost since the last time because nobody drained them.
    pub n_dropped: u64,
}

struct Queue {
    lines: VecDeque<Line>,
    n_dropped: u64,
}

/// The line that a thread has begun, and the errors it has logged since [`forget_errors`].
struct Thread {
    begun: String,
    level: Level,
    errors: Vec<String>,
}

/// Who takes the lines in the place of the queue.
type Sink = fn(&Line);

static SINK: OnceLock<Sink> = OnceLock::new();
static QUEUE: Mutex<Queue> = Mutex::new(Queue { lines: VecDeque::new(), n_dropped: 0 });
static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Info as u8);
static INSTALLED: Once = Once::new();

thread_local! {
    static THREAD: RefCell<Thread> =
        const { RefCell::new(Thread { begun: String::new(), level: Level::Info, errors: Vec::new() }) };
}

/// Take over llama.cpp's, ggml's and `common`'s logs, once.
pub(super) fn install() {
    INSTALLED.call_once(|| {
        // SAFETY: the callback stays valid for the life of the process and takes no user data.
        unsafe {
            sys::llama_log_set(Some(on_log), std::ptr::null_mut());
            sys::ggml_log_set(Some(on_log), std::ptr::null_mut());
            ffi::lb_silence_common();
        }
    });
}

/// Keep lines of this level and above. The default is [`Level::Info`].
pub fn set_level(level: Level) {
    THRESHOLD.store(level as u8, Ordering::Relaxed);
}

/// From now on lines go there, and nowhere else; for a process that has nobody to drain them. The first call counts.
pub fn send_to(sink: Sink) {
    let _ = SINK.set(sink);
}

/// A line that another process has logged.
pub fn take_over(level: u32, text: &str) {
    let level = match level {
        0 => Level::Debug,
        1 => Level::Info,
        2 => Level::Warn,
        _ => Level::Error,
    };
    keep(Line { level, text: text.to_owned() });
}

/// Take the lines that wait.
pub fn drain() -> Drained {
    let mut queue = queue();
    Drained { lines: queue.lines.drain(..).collect(), n_dropped: std::mem::take(&mut queue.n_dropped) }
}

/// Begin to collect the errors that this thread logs.
pub(super) fn forget_errors() {
    THREAD.with_borrow_mut(|thread| thread.errors.clear());
}

/// Why the last call on this thread failed, in llama.cpp's words; `fallback` where it said nothing.
pub(super) fn reason(fallback: &str) -> String {
    let errors = THREAD.with_borrow_mut(|thread| std::mem::take(&mut thread.errors));
    let mut reasons: Vec<&str> = errors.iter().map(|line| strip_function(line)).collect();
    if reasons.len() > 1 {
        // The last lines only say once more that something failed; what failed is said by those before.
        reasons.retain(|line| *line != "failed to load model" && !line.starts_with("failed to load model from"));
    }
    reasons.dedup();
    if reasons.is_empty() { fallback.to_owned() } else { reasons.join("; ") }
}

/// A log line without the names of the functions that it begins with.
fn strip_function(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((head, tail)) = rest.split_once(": ") {
        let is_function = !head.is_empty() && head.chars().all(|c| c.is_ascii_alphanumeric() || "_:~".contains(c));
        if !is_function && head != "error loading model" {
            break;
        }
        rest = tail.trim_start();
    }
    rest
}

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    // SAFETY: ggml passes a NUL-terminated text that lives as long as the call.
    let Some(text) = (unsafe { ffi::text(text) }) else { return };
    // A panic must not unwind into C++; there is nobody to tell, and a lost log line harms nothing.
    let _ = std::panic::catch_unwind(|| note(level, &text));
}

/// Put the fragments that llama.cpp logs together to lines.
fn note(level: sys::ggml_log_level, text: &str) {
    let level = match level {
        sys::GGML_LOG_LEVEL_DEBUG => Some(Level::Debug),
        sys::GGML_LOG_LEVEL_WARN => Some(Level::Warn),
        sys::GGML_LOG_LEVEL_ERROR => Some(Level::Error),
        sys::GGML_LOG_LEVEL_CONT => None,
        _ => Some(Level::Info),
    };
    // A thread that is ending has no place for its line any more.
    let _ = THREAD.try_with(|thread| {
        let Ok(mut thread) = thread.try_borrow_mut() else { return };
        if let Some(level) = level {
            thread.level = level;
        }
        for part in text.split_inclusive('\n') {
            thread.begun.push_str(part.trim_end_matches('\n'));
            if part.ends_with('\n') {
                let line = Line { level: thread.level, text: std::mem::take(&mut thread.begun) };
                if line.level == Level::Error {
                    thread.errors.push(line.text.clone());
                }
                keep(line);
            }
        }
    });
}

fn keep(line: Line) {
    if line.text.trim().is_empty() || (line.level as u8) < THRESHOLD.load(Ordering::Relaxed) {
        return;
    }
    if let Some(sink) = SINK.get() {
        return sink(&line);
    }
    let mut queue = queue();
    if queue.lines.len() == CAPACITY {
        queue.lines.pop_front();
        queue.n_dropped += 1;
    }
    queue.lines.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::{Level, forget_errors, note, reason, strip_function, sys};

    #[test]
    fn a_reason_is_what_failed_without_function_names() {
        assert_eq!(
            strip_function("llama_model_load: error loading model: unknown model architecture: 'x'"),
            "unknown model architecture: 'x'"
        );
        assert_eq!(strip_function("plain words: kept"), "plain words: kept");
    }

    #[test]
    fn errors_of_a_thread_are_its_own_and_survive_fragments() {
        forget_errors();
        note(sys::GGML_LOG_LEVEL_ERROR, "f: half a ");
        note(sys::GGML_LOG_LEVEL_CONT, "reason\n");
        note(sys::GGML_LOG_LEVEL_ERROR, "g: failed to load model\n");
        std::thread::scope(|scope| {
            scope.spawn(|| note(sys::GGML_LOG_LEVEL_ERROR, "elsewhere\n"));
        });
        assert_eq!(reason("none"), "half a reason");
        assert_eq!(reason("none"), "none");
    }

    #[test]
    fn levels_are_ordered() {
        assert!(Level::Debug < Level::Info && Level::Warn < Level::Error);
    }
}
