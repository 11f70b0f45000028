//! Volumes at the start: whether they are what the configuration says, and what is made on them at first use.

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};

use crate::ask::{Ask, Given, Servers};
use crate::attrs::Attrs;
use crate::config::Location;
use crate::coordinator::Hidden;
use crate::handle::{Handle, MAX_SERVER_HANDLE};
use crate::journal::Set;
use crate::layout::{HOME, Volume};
use crate::upstream::{Upstream, Upstreams};

/// MOUNT, version 3.
const MOUNT: (u32, u32) = (100_005, 3);
const TOP: Bytes = Bytes::from_static(b".quorate-route");
const LABEL: Bytes = Bytes::from_static(b"label");

/// Why a volume can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Its server does not answer.
    #[error("{0}: its server does not answer")]
    Unanswered(String),
    /// It gives no handle for the export.
    #[error("{url}: MOUNT is refused with {status}")]
    Mount {
        /// The volume.
        url: String,
        /// `mountstat3`.
        status: u32,
    },
    /// An order of the router's was refused.
    #[error(
        "{url}: {what}: {status:?}; the router acts as user 0 there, so the export must be writable and not squash it"
    )]
    Refused {
        /// The volume.
        url: String,
        /// What it was.
        what: &'static str,
        /// As the server said.
        status: Status,
    },
    /// It does not do what is needed.
    #[error("{url}: {what}")]
    Unfit {
        /// The volume.
        url: String,
        /// What.
        what: String,
    },
}

/// What is known of all volumes when they can be used.
#[derive(Debug)]
pub struct Volumes {
    /// The identity of the set.
    pub set: Set,
    /// Hidden directories.
    pub hidden: Vec<Hidden>,
    /// What clients see as `/`.
    pub root: Handle,
    /// The exports' own roots.
    pub tops: Vec<Fh>,
}

struct Visitor<'a> {
    servers: &'a Upstreams,
    volume: Volume,
    url: &'a str,
}

/// Looks at all volumes; makes what is missing if none has been used yet.
///
/// # Errors
/// [`SetupError`].
pub async fn set_up(
    servers: &Upstreams,
    locations: &[Location],
    new: Set,
) -> Result<Volumes, SetupError> {
    let mut tops = Vec::new();
    let mut labels = Vec::new();
    for (number, location) in locations.iter().enumerate() {
        let visitor = visitor(servers, number, location);
        let top = mount(location).await?;
        if top.len() > MAX_SERVER_HANDLE {
            return Err(visitor.unfit(format!(
                "its handles have {} bytes, and no more than {MAX_SERVER_HANDLE} fit",
                top.len()
            )));
        }
        labels.push(visitor.label(&top).await?);
        tops.push(top);
    }
    let set = match labels.iter().flatten().next() {
        None => new,
        Some(label) => label.set,
    };
    let (mut hidden, mut root) = (Vec::new(), None);
    for (number, location) in locations.iter().enumerate() {
        let visitor = visitor(servers, number, location);
        let expected = Label {
            set,
            volume: visitor.volume,
            of: locations.len() as u16,
        };
        let directory = visitor.directory(&tops[number], TOP).await?;
        match &labels[number] {
            Some(label) if *label == expected => {}
            Some(label) => {
                return Err(visitor.unfit(format!(
                    "it is volume {} of {} of another set or place: the configuration names it as {} of {}",
                    label.volume.0, label.of, number, expected.of
                )));
            }
            // The first volume gets its label last: a first use that did not go to its end goes on.
            None if labels[0].is_none() => visitor.probe(&directory).await?,
            None => {
                return Err(visitor.unfit(
                    "it was never used, and the others were: volumes can't be added yet".into(),
                ));
            }
        }
        hidden.push(Hidden {
            staging: visitor
                .directory(&directory, Bytes::from_static(b"staging"))
                .await?,
            placed: visitor
                .directory(&directory, Bytes::from_static(b"placed"))
                .await?,
        });
        if visitor.volume == HOME {
            let found = visitor.shown(&directory).await?;
            root = Some(Handle {
                volume: HOME,
                server: found,
            });
        }
    }
    for (number, location) in locations.iter().enumerate().rev() {
        if labels[number].is_none() {
            let visitor = visitor(servers, number, location);
            let label = Label {
                set,
                volume: visitor.volume,
                of: locations.len() as u16,
            };
            visitor.write_label(&tops[number], &label).await?;
        }
    }
    let root = root.ok_or_else(|| SetupError::Unanswered("no volume".into()))?;
    Ok(Volumes {
        set,
        hidden,
        root,
        tops,
    })
}

fn visitor<'a>(servers: &'a Upstreams, number: usize, location: &'a Location) -> Visitor<'a> {
    Visitor {
        servers,
        volume: Volume(number as u16),
        url: &location.url,
    }
}

/// The handle of an export.
async fn mount(location: &Location) -> Result<Fh, SetupError> {
    let url = || location.url.clone();
    let server = Upstream::start(location.mount.clone());
    let mut w = Writer::default();
    w.opaque(location.path.as_bytes());
    let results = server.call(MOUNT, 1, &Who::root(), &w.out).await;
    let r = &mut Reader::new(results.map_err(|_| SetupError::Unanswered(url()))?);
    match r.u32() {
        Ok(0) => {}
        Ok(status) => return Err(SetupError::Mount { url: url(), status }),
        Err(_) => return Err(SetupError::Unanswered(url())),
    }
    r.opaque(MAX_HANDLE_BYTES, "handle")
        .map_err(|_| SetupError::Unanswered(url()))
}

/// What stands on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    set: Set,
    volume: Volume,
    of: u16,
}

impl Label {
    fn text(&self) -> Bytes {
        let set: String = self.set.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "quorate-route 1 set {set} volume {} of {}",
            self.volume.0, self.of
        )
        .into()
    }

    fn parse(text: &[u8]) -> Option<Label> {
        let text = std::str::from_utf8(text).ok()?;
        let rest = text.strip_prefix("quorate-route 1 set ")?;
        let (set, rest) = rest.split_once(" volume ")?;
        let (volume, of) = rest.split_once(" of ")?;
        let byte = |at: usize| u8::from_str_radix(set.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..set.len()).step_by(2).map(byte).collect();
        Some(Label {
            set: bytes?.try_into().ok()?,
            volume: Volume(volume.parse().ok()?),
            of: of.parse().ok()?,
        })
    }
}

impl Visitor<'_> {
    fn unfit(&self, what: String) -> SetupError {
        let url = self.url.to_string();
        SetupError::Unfit { url, what }
    }

    fn refused(&self, what: &'static str, status: Status) -> SetupError {
        let url = self.url.to_string();
        match status {
            Status::Jukebox => SetupError::Unanswered(url),
            _ => SetupError::Refused { url, what, status },
        }
    }

    async fn ask(&self, what: &'static str, ask: Ask) -> Result<Given, SetupError> {
        let given = self.servers.ask(self.volume, &Who::root(), ask).await;
        given.map_err(|status| self.refused(what, status))
    }

    async fn look(&self, dir: &Fh, name: Bytes) -> Result<Option<Fh>, SetupError> {
        let dir = dir.clone();
        let ask = Ask::Lookup(Place { dir, name });
        match self.servers.ask(self.volume, &Who::root(), ask).await {
            Ok(Given::Object(object)) => Ok(Some(object.handle)),
            Ok(_) => Err(self.refused("LOOKUP", Status::ServerFault)),
            Err(Status::NoEnt) => Ok(None),
            Err(status) => Err(self.refused("LOOKUP", status)),
        }
    }

    async fn attrs(&self, object: &Fh) -> Result<Attrs, SetupError> {
        match self.ask("GETATTR", Ask::GetAttr(object.clone())).await? {
            Given::Attrs(attrs) => Ok(attrs),
            _ => Err(self.refused("GETATTR", Status::ServerFault)),
        }
    }

    async fn make(&self, dir: &Fh, name: Bytes, mode: u32) -> Result<Fh, SetupError> {
        if let Some(found) = self.look(dir, name.clone()).await? {
            return Ok(found);
        }
        let place = Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        let new = NewAttrs {
            mode: Some(mode),
            ..NewAttrs::default()
        };
        self.ask("MKDIR", Ask::Mkdir(place, new)).await?;
        let made = self.look(dir, name).await?;
        made.ok_or_else(|| self.refused("MKDIR", Status::ServerFault))
    }

    /// A directory of user 0 alone.
    async fn directory(&self, dir: &Fh, name: Bytes) -> Result<Fh, SetupError> {
        let made = self.make(dir, name, 0o700).await?;
        if self.attrs(&made).await?.uid() != 0 {
            return Err(self.unfit(
                "the server takes user 0 for another: export it with no_root_squash to the router"
                    .into(),
            ));
        }
        Ok(made)
    }

    async fn shown(&self, dir: &Fh) -> Result<Fh, SetupError> {
        self.make(dir, Bytes::from_static(b"root"), 0o755).await
    }

    async fn label(&self, top: &Fh) -> Result<Option<Label>, SetupError> {
        let Some(directory) = self.look(top, TOP).await? else {
            return Ok(None);
        };
        let Some(label) = self.look(&directory, LABEL).await? else {
            return Ok(None);
        };
        match self.ask("READLINK", Ask::Readlink(label)).await? {
            Given::Text(text) => match Label::parse(&text) {
                Some(label) => Ok(Some(label)),
                None => Err(self.unfit("its label says nothing that is known".into())),
            },
            _ => Err(self.refused("READLINK", Status::ServerFault)),
        }
    }

    async fn write_label(&self, top: &Fh, label: &Label) -> Result<(), SetupError> {
        let directory = self.make(top, TOP, 0o700).await?;
        let place = Place {
            dir: directory,
            name: LABEL,
        };
        self.ask("SYMLINK", Ask::Symlink(place, label.text()))
            .await?;
        Ok(())
    }

    /// Whether a handle stays the same when its object moves to another directory, and stubs can be made.
    async fn probe(&self, directory: &Fh) -> Result<(), SetupError> {
        let name = Bytes::from_static(b"probe");
        let one = self.directory(directory, name.clone()).await?;
        let two = self.directory(&one, Bytes::from_static(b"a")).await?;
        let before = self.directory(&two, name.clone()).await?;
        let at = |dir: &Fh| Place {
            dir: dir.clone(),
            name: name.clone(),
        };
        self.ask("RENAME", Ask::Rename(at(&two), at(&one))).await?;
        let after = self.look(&one, name.clone()).await?;
        let stub = crate::coordinator::stub_attrs(self.volume);
        self.ask("SETATTR", Ask::SetAttr(before.clone(), stub))
            .await?;
        let is_stub = self.attrs(&before).await?.stub() == Some(self.volume);
        self.ask("RMDIR", Ask::Rmdir(at(&one))).await?;
        let two = Place {
            dir: one,
            name: Bytes::from_static(b"a"),
        };
        self.ask("RMDIR", Ask::Rmdir(two)).await?;
        self.ask("RMDIR", Ask::Rmdir(at(directory))).await?;
        if after.as_ref() != Some(&before) {
            return Err(self.unfit(
                "handles change when files are moved: export it with no_subtree_check".into(),
            ));
        }
        match is_stub {
            true => Ok(()),
            false => Err(self.unfit("it does not keep the owner of a directory".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back() {
        let label = Label {
            set: [0xa5; 16],
            volume: Volume(3),
            of: 32,
        };
        assert_eq!(Label::parse(&label.text()), Some(label.clone()));
        for wrong in [
            "",
            "quorate-route 2",
            "quorate-route 1 set aa volume 3 of 4",
        ] {
            assert_eq!(Label::parse(wrong.as_bytes()), None);
        }
    }
}
