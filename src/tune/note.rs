//! What was measured, kept in a small file for the next load of the same model on the same machine.

use super::Report;
use std::fs;
use std::path::{Path, PathBuf};

/// A note is small; what is larger is none. Unit: bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Where the note with this key is. A key is a hash: letters and digits.
fn path(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.json"))
}

/// What an earlier load found. None where there is no note, or none that can be meant.
pub fn read(folder: &Path, key: &str) -> Option<Report> {
    let path = path(folder, key);
    let size = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
    let text = (size <= MAX_BYTES).then(|| fs::read_to_string(&path).ok()).flatten()?;
    let report: Report = serde_json::from_str(&text).ok()?;
    report.is_sound().then_some(Report { is_noted: true, ..report })
}

/// Keep what was found: whole or not at all. A folder that cannot be written to costs the next load its time, no more.
pub fn write(folder: &Path, key: &str, report: &Report) {
    let Ok(text) = serde_json::to_string(report) else { return };
    let written = path(folder, &format!("{key}.{}", std::process::id()));
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&written, text));
    if kept.and_then(|()| fs::rename(&written, path(folder, key))).is_err() {
        drop(fs::remove_file(&written));
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
mod tests {
    use super::super::{Report, Sample, Setting, Shape};
    use super::{path, read, write};
    use std::fs;
    use std::time::Duration;

    fn report() -> Report {
        let sample = Sample {
            setting: Setting { flash_attn: true, kv_unified: true },
            n_threads: 2,
            decode: Duration::from_millis(3),
            prefill_row: Duration::ZERO,
        };
        Report::new(Shape { n_rows: 4, n_context: 128 }, vec![sample], Duration::from_secs(1))
    }

    #[test]
    fn a_note_is_read_back_and_a_bad_one_is_not() {
        let folder = std::env::temp_dir().join(format!("llama-batch-notes-{}", std::process::id()));
        assert_eq!(read(&folder, "k"), None);
        write(&folder, "k", &report());
        assert_eq!(read(&folder, "k"), Some(Report { is_noted: true, ..report() }));
        let text = fs::read_to_string(path(&folder, "k")).unwrap();
        for bad in [
            "",
            "{}",
            &text.replace("\"chosen\":0", "\"chosen\":7"),
            &text.replace("\"n_threads\":2", "\"n_threads\":0"),
        ] {
            fs::write(path(&folder, "k"), bad).unwrap();
            assert_eq!(read(&folder, "k"), None, "{bad}");
        }
        fs::write(path(&folder, "k"), vec![b' '; 1 << 17]).unwrap();
        assert_eq!(read(&folder, "k"), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file is left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_costs_nothing() {
        let file = std::env::temp_dir().join(format!("llama-batch-no-folder-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        write(&file.join("below"), "k", &report());
        assert_eq!(read(&file.join("below"), "k"), None);
        fs::remove_file(&file).unwrap();
    }
}
