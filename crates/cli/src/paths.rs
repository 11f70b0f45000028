//! Where things are when nobody says otherwise.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory of the group that `quorate up` runs: under `$XDG_DATA_HOME`, or `~/.local/share`.
pub fn local_group() -> Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .context(
            "neither XDG_DATA_HOME nor HOME is set: say where to keep the data (--data DIR)",
        )?;
    Ok(base.join("quorate/local"))
}

/// The group file in a group's directory.
pub fn group_file(directory: &Path) -> PathBuf {
    directory.join("group.toml")
}

/// The file of a volume of several groups, in the directory of all of them.
pub fn volume_file(directory: &Path) -> PathBuf {
    directory.join("volume.toml")
}

/// A replica's own directory.
pub fn replica(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("replica-{id}"))
}

/// A replica's key file.
pub fn replica_key(directory: &Path, id: u8) -> PathBuf {
    replica(directory, id).join("key")
}

/// The directory of a replica's supervisor, where it is not the replica's.
pub fn supervisor(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("supervisor-{id}"))
}

/// The directory of a replica's key holder.
pub fn holder(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("holder-{id}"))
}

/// The identity key that a key holder has.
pub fn holder_key(directory: &Path, id: u8) -> PathBuf {
    holder(directory, id).join("key")
}

/// Which key of a TPM it is instead.
pub fn holder_tpm(directory: &Path, id: u8) -> PathBuf {
    holder(directory, id).join("tpm")
}

/// How many statements that key has signed.
pub fn holder_counter(directory: &Path, id: u8) -> PathBuf {
    holder(directory, id).join("counter")
}

/// Where the key holder listens.
pub fn holder_socket(directory: &Path, id: u8) -> PathBuf {
    holder(directory, id).join("socket")
}

/// The key file of the group's first client.
pub fn client_key(directory: &Path) -> PathBuf {
    directory.join("client.key")
}

/// The key files of a group's first clients, of which there are `count`.
pub fn client_keys(directory: &Path, count: u16) -> Vec<(String, PathBuf)> {
    let more = (2..=count).map(|n| {
        let name = format!("client-{n}");
        let file = directory.join(format!("{name}.key"));
        (name, file)
    });
    let first = ("client".into(), client_key(directory));
    std::iter::once(first).chain(more).collect()
}

/// The key file with which a replica's supervisor asks the others how they are.
pub fn supervisor_key(directory: &Path, id: u8) -> PathBuf {
    directory.join(format!("supervisor-{id}.key"))
}

/// The key file of the volume's owner.
pub fn owner_key(directory: &Path) -> PathBuf {
    directory.join("owner.key")
}

/// The key file of whoever manages what is shared: the owner's, where there is one, else the first client's.
pub fn manager_key(directory: &Path) -> PathBuf {
    match owner_key(directory) {
        owner if owner.exists() => owner,
        _ => client_key(directory),
    }
}

/// The directory that a group file is in.
pub fn beside(group_file: &Path) -> PathBuf {
    match group_file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}
