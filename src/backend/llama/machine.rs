//! What this process may use of the machine: cores and memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Physical cores that this process may run on; at least 1. Logical ones where the system does not tell them apart.
pub fn n_physical_cores() -> u32 {
    // Affinity and the control group's quota, as the standard library reads both.
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let physical = allowed_cpus().map(|cpus| cpus.iter().map(|cpu| core_of(*cpu)).collect::<BTreeSet<_>>().len());
    physical.filter(|n| *n > 0).map_or(usable, |n| n.min(usable)) as u32
}

/// How much of the cores nobody uses.
#[derive(Debug, Default)]
pub(super) struct IdleCores {
    read_at: Duration,
    /// Time that the processors of this process were idle, and all their time. Unit: ticks of the kernel's clock.
    ticks: Option<(u64, u64)>,
    idle: Option<f32>,
}

impl IdleCores {
    /// Ticks are counted over this time at least.
    const LEAST: Duration = Duration::from_millis(200);

    /// Processors of this process that were idle of late, by a clock's reading; none where the system does not tell.
    pub(super) fn of_late(&mut self, now: Duration) -> Option<f32> {
        if self.ticks.is_none() || now.saturating_sub(self.read_at) >= Self::LEAST {
            let allowed = allowed_cpus()?;
            let ticks = parse_idle(&fs::read_to_string("/proc/stat").ok()?, &allowed);
            if let (Some((idle, all)), Some((idle_now, all_now))) = (self.ticks, ticks) {
                let share = idle_now.saturating_sub(idle) as f32 / all_now.saturating_sub(all).max(1) as f32;
                self.idle = Some(share * allowed.len() as f32);
            }
            (self.ticks, self.read_at) = (ticks, now);
        }
        self.idle
    }
}

/// Idle ticks and all ticks of some processors, as the kernel counts them.
fn parse_idle(stat: &str, cpus: &[u32]) -> Option<(u64, u64)> {
    let mut sums = None;
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(cpu) = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok()) else { continue };
        if cpus.contains(&cpu) {
            // user nice system idle iowait irq softirq steal; what comes then is part of the first two.
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            let idle = ticks.get(3)? + ticks.get(4)?;
            let (sum_idle, sum_all) = sums.unwrap_or_default();
            sums = Some((sum_idle + idle, sum_all + ticks.iter().sum::<u64>()));
        }
    }
    sums
}

/// The processor's name, where the system tells it.
pub fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(name.trim_start_matches(['\t', ' ', ':']).trim().to_owned())
}

/// The logical processors in this process's affinity mask.
pub(super) fn allowed_cpus() -> Option<Vec<u32>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    parse_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// A name for the core that a logical processor belongs to: the list of its siblings.
fn core_of(cpu: u32) -> String {
    fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        .map_or_else(|_| cpu.to_string(), |siblings| siblings.trim().to_owned())
}

/// Numbers as the kernel lists them: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(numbers)
}

/// Memory that this process can take without the kernel ending it. Unit: bytes. None where it is not known.
pub fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = kib.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024;
    Some(group_memory().map_or(free, |group| group.min(free)))
}

/// What the limits of this process's control groups leave.
fn group_memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            if controllers.is_empty() {
                Some(left_on_path(Path::new("/sys/fs/cgroup"), path, "memory.max", "memory.current"))
            } else if controllers.split(',').any(|c| c == "memory") {
                let root = Path::new("/sys/fs/cgroup/memory");
                Some(left_on_path(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes"))
            } else {
                None
            }
        })
        .flatten()
        .min()
}

/// The least that any group from this one up to the root leaves. In a container the path may not be visible; then the
/// root is the container's own.
fn left_on_path(root: &Path, path: &str, limit: &str, usage: &str) -> Option<u64> {
    let mut folder = root.join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        if let Some(left) = left_in(&folder, limit, usage) {
            least = Some(least.map_or(left, |n: u64| n.min(left)));
        }
        if folder == *root || !folder.pop() || !folder.starts_with(root) {
            return least;
        }
    }
}

fn left_in(folder: &Path, limit: &str, usage: &str) -> Option<u64> {
    let read = |name: &str| -> Option<u64> { fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
    let limit = read(limit)?;
    let used = read(usage)?;
    Some(limit.saturating_sub(used.saturating_sub(reclaimable(folder.join("memory.stat")))))
}

/// Cached pages of files, which the kernel gives up before it ends a process.
fn reclaimable(stat: PathBuf) -> u64 {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    let pages = |name: &str| {
        stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap_or_default()
    };
    pages("inactive_file ") + pages("active_file ")
}

/// Bytes for people.
pub(super) fn gib(bytes: u64) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib >= 0.1 { format!("{gib:.1} GiB") } else { format!("{:.0} MiB", gib * 1024.0) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets what it does not expect fails by panicking")]
mod tests {
    use super::{IdleCores, gib, left_on_path, n_physical_cores, parse_idle, parse_list};
    use std::fs;
    use std::time::Duration;

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse_list("\t0-2,8\n"), Some(vec![0, 1, 2, 8]));
        assert_eq!(parse_list("none"), None);
    }

    #[test]
    fn idle_time_is_that_of_the_processors_that_are_named() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 1 2 40 5 0 0 2 7 0\ncpu1 1 1 1 1 1 1 1 1\nintr 5 6\n";
        assert_eq!(parse_idle(stat, &[0]), Some((45, 60)));
        assert_eq!(parse_idle(stat, &[0, 1]), Some((47, 68)));
        assert_eq!(parse_idle(stat, &[7]), None);
        assert_eq!(parse_idle("cpu0 1 2\n", &[0]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn idle_cores_are_told_after_some_time_and_no_more_than_there_are() {
        let mut cores = IdleCores::default();
        assert_eq!(cores.of_late(Duration::from_secs(1)), None);
        std::thread::sleep(Duration::from_millis(30));
        let idle = cores.of_late(Duration::from_secs(2)).unwrap();
        assert!((0.0..=std::thread::available_parallelism().unwrap().get() as f32).contains(&idle), "{idle}");
        assert_eq!(cores.of_late(Duration::from_millis(2001)), Some(idle), "it is not counted over a moment");
    }

    #[test]
    fn there_is_a_core_and_not_more_than_the_process_may_use() {
        let usable = std::thread::available_parallelism().unwrap().get() as u32;
        assert!((1..=usable).contains(&n_physical_cores()));
    }

    #[test]
    fn the_tightest_group_on_the_path_counts_and_cached_files_are_free() {
        let root = std::env::temp_dir().join(format!("llama-batch-groups-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (folder, limit, used) in [("", "max", "50"), ("a", "1000", "300"), ("a/b", "max", "300")] {
            fs::write(root.join(folder).join("memory.max"), limit).unwrap();
            fs::write(root.join(folder).join("memory.current"), used).unwrap();
        }
        fs::write(root.join("a/memory.stat"), "anon 100\ninactive_file 200\n").unwrap();
        assert_eq!(left_on_path(&root, "/a/b", "memory.max", "memory.current"), Some(900));
        assert_eq!(left_on_path(&root, "/elsewhere", "memory.max", "memory.current"), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn bytes_are_shown_in_a_unit_that_fits() {
        assert_eq!(gib(3 << 29), "1.5 GiB");
        assert_eq!(gib(5 << 20), "5 MiB");
    }
}
