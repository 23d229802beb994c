//! The threads that compute.
//!
//! Where there is one for each processor, each stays on its own. Otherwise a neighbour that takes a processor leaves two
//! of them on another one, and there they wait for each other in a loop, a time slice for each of a pass's some hundred
//! waits. Fewer threads may run wherever there is room.

use super::machine::allowed_cpus;
use llama_cpp_sys_2 as sys;
use std::ptr::NonNull;

/// Threads that sleep between passes. ggml would otherwise start and join them for every graph.
pub(super) struct Threads {
    pool: NonNull<sys::ggml_threadpool>,
    /// The processor of who asks for a pass, where each thread has its own.
    home: Option<u32>,
}

impl Threads {
    pub(super) fn new(n: u32) -> Option<Self> {
        let cpus = allowed_cpus().filter(|cpus| n > 1 && cpus.len() == n as usize).unwrap_or_default();
        // SAFETY: returns a struct.
        let mut params = unsafe { sys::ggml_threadpool_params_default(n as i32) };
        params.poll = 0;
        params.strict_cpu = !cpus.is_empty();
        for cpu in &cpus {
            *params.cpumask.get_mut(*cpu as usize)? = true;
        }
        // ggml sends its caller to the last of them, for good. What it does beside passes, and whom it starts, is free.
        let _restored = Stay::since_now();
        // SAFETY: the parameters are ggml's own, with fewer polls.
        let pool = NonNull::new(unsafe { sys::ggml_threadpool_new(&raw mut params) })?;
        Some(Self { pool, home: cpus.last().copied() })
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.pool.as_ptr()
    }

    /// Keep the caller at its place, as one of these threads, until what is returned is dropped.
    pub(super) fn stay(&self) -> Option<Stay> {
        self.home.map(Stay::on)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // SAFETY: the only owner; the context that used them is gone.
        unsafe { sys::ggml_threadpool_free(self.pool.as_ptr()) };
    }
}

/// The caller is kept on a processor; when this is dropped, it may run where it could before. It is no matter where the
/// system does not do so.
#[cfg(target_os = "linux")]
pub(super) struct Stay(Option<rustix::thread::CpuSet>);

#[cfg(target_os = "linux")]
impl Stay {
    fn since_now() -> Self {
        Self(rustix::thread::sched_getaffinity(None).ok())
    }

    fn on(cpu: u32) -> Self {
        let stay = Self::since_now();
        if stay.0.as_ref().is_some_and(|before| before.is_set(cpu as usize)) {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu as usize);
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
        stay
    }
}

#[cfg(target_os = "linux")]
impl Drop for Stay {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Stay;

#[cfg(not(target_os = "linux"))]
impl Stay {
    const fn since_now() -> Self {
        Self
    }

    const fn on(_: u32) -> Self {
        Self
    }
}
