//! Where it all happens.

use std::path::{Path, PathBuf};

/// A directory of this run, which goes with all that is in it.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    pub fn make(base: &Path) -> Result<Place, String> {
        let path = base.join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let path = path.canonicalize().map_err(|e| e.to_string())?;
        Ok(Place(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Not into a mount that could not be taken away.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if mounts.contains(self.0.to_string_lossy().as_ref()) {
            eprintln!("{} is still mounted and stays", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
