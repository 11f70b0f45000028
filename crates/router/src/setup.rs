//! Volumes at the start: whether they are what the configuration says, and what is made on them at first use.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use quorate_files::Who;
use quorate_nfs::call::{Fh, NewAttrs, Place as NamePlace};
use quorate_nfs::handle::MAX_HANDLE_BYTES;
use quorate_nfs::status::Status;
use quorate_nfs::xdr::{Reader, Writer};

use crate::ask::{Ask, Given};
use crate::attrs::Attrs;
use crate::buckets::Buckets;
use crate::config::Location;
use crate::coordinator::Hidden;
use crate::handle::{Handle, MAX_SERVER_HANDLE};
use crate::journal::Set;
use crate::layout::{HOME, Volume};
use crate::map::{Map, Place, Use};
use crate::shelf::{self, Shelf};
use crate::upstream::{Upstream, Upstreams};

/// MOUNT, version 3.
const MOUNT: (u32, u32) = (100_005, 3);
const TOP: Bytes = Bytes::from_static(b".quorate-route");
const LABEL: Bytes = Bytes::from_static(b"label");
/// A symbolic link beside the label of a group, whose text says with which key its handles are made.
const HANDLES: Bytes = Bytes::from_static(b"handles");
const BUCKETS: Bytes = Bytes::from_static(b"buckets");
const TABLES: Bytes = Bytes::from_static(b"tables");

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

/// A volume that was looked at.
#[derive(Clone, Debug)]
pub struct Visited {
    /// Where it is.
    pub location: Location,
    /// Its server.
    pub upstream: Upstream,
    /// The export's own root.
    pub top: Fh,
    label: Option<Label>,
}

/// What the configuration's volumes say about themselves.
#[derive(Debug)]
pub struct Survey {
    /// The identity of the set.
    pub set: Set,
    /// Whether this is its first use.
    pub is_new: bool,
    volumes: Vec<Visited>,
}

/// What is known of all volumes when they can be used.
#[derive(Debug)]
pub struct Volumes {
    /// Where all is.
    pub buckets: Arc<Buckets<Upstreams>>,
    /// Hidden directories of all buckets, by their keys.
    pub hidden: Vec<Hidden>,
    /// What clients see as `/`.
    pub root: Handle,
    /// The router's own directories, by volume.
    pub shelves: BTreeMap<Volume, Shelf>,
}

/// Looks at a volume.
///
/// # Errors
/// [`SetupError`].
pub async fn visit(location: &Location) -> Result<Visited, SetupError> {
    let upstream = Upstream::open(location.nfs.clone(), location.udp);
    let top = mount(location, &upstream).await?;
    let visitor = Visitor {
        upstream: &upstream,
        url: &location.url,
    };
    if top.len() > MAX_SERVER_HANDLE {
        return Err(visitor.unfit(format!(
            "its handles have {} bytes, and no more than {MAX_SERVER_HANDLE} fit",
            top.len()
        )));
    }
    let label = visitor.label(&top).await?;
    if label.is_some() && location.is_group() {
        visitor.check_handles(&top).await?;
    }
    Ok(Visited {
        location: location.clone(),
        top,
        label,
        upstream,
    })
}

/// Looks at the volumes of a configuration. `new`: the identity of a set that has not been used yet.
///
/// # Errors
/// [`SetupError`].
pub async fn survey(locations: &[Location], new: Set) -> Result<Survey, SetupError> {
    let mut volumes = Vec::new();
    for location in locations {
        volumes.push(visit(location).await?);
    }
    let found = volumes.iter().find_map(|volume| volume.label.as_ref());
    Ok(Survey {
        set: found.map_or(new, |label| label.set),
        // The first volume gets its label last: a first use that did not go to its end goes on.
        is_new: volumes.first().is_some_and(|volume| volume.label.is_none()),
        volumes,
    })
}

/// Makes what is missing if the set has not been used yet, and finds all that is needed. `kept`: the map, if there is one; else it is found on
/// the volumes. `buckets`: how many a new set has.
///
/// # Errors
/// [`SetupError`].
pub async fn set_up(
    survey: Survey,
    kept: Option<Map>,
    buckets: u32,
    move_rate: u64,
) -> Result<Volumes, SetupError> {
    let Survey {
        set,
        is_new,
        volumes,
    } = survey;
    let first = is_new && kept.is_none();
    let mut found = BTreeMap::new();
    for (number, visited) in volumes.into_iter().enumerate() {
        let unfit = |what: String| visited.unfit(what);
        let volume = match &visited.label {
            Some(label) if label.set != set => {
                return Err(unfit("it is a volume of another set".into()));
            }
            Some(label) if first && label.volume.0 as usize != number => {
                return Err(unfit("it has another place in the configuration".into()));
            }
            Some(label) => label.volume,
            None if first => Volume(number as u16),
            None => {
                return Err(unfit(
                    "it was never used, and the others were: add it with `quorate volume add`"
                        .into(),
                ));
            }
        };
        let url = visited.location.url.clone();
        if let Some(Visited { location, .. }) = found.insert(volume, visited) {
            let what = format!("it is volume {} and so is {}", volume.0, location.url);
            return Err(SetupError::Unfit { url, what });
        }
    }
    let mut map = match kept {
        Some(map) => map,
        None if first => {
            let urls = found.values().map(|v| v.location.url.clone());
            Map::first(urls.collect(), buckets)
        }
        None => recovered(&found).await?,
    };
    let upstreams = Upstreams::new(move_rate);
    let mut elsewhere = false;
    let mut shelves = BTreeMap::new();
    for volume in map.present().collect::<Vec<_>>() {
        let member = &mut map.volumes[usize::from(volume.0)];
        let visited = match found.remove(&volume) {
            Some(visited) => visited,
            None => {
                let location = Location::parse(&member.url);
                let url = member.url.clone();
                let visited =
                    visit(&location.map_err(|what| SetupError::Unfit { url, what })?).await?;
                match &visited.label {
                    Some(label) if (label.set, label.volume) == (set, volume) => visited,
                    _ => {
                        return Err(
                            visited.unfit(format!("it is not volume {} any more", volume.0))
                        );
                    }
                }
            }
        };
        if member.url != visited.location.url {
            member.url = visited.location.url.clone();
            elsewhere = true;
        }
        if first {
            visited.visitor().prepare(&visited.top).await?;
        }
        shelves.insert(volume, visited.shelf().await?);
        if first && volume.0 != 0 {
            visited.write_label(set, volume).await?;
        }
        upstreams.set(volume, Some(visited.upstream.clone()));
        found.insert(volume, visited);
    }
    if let Some(other) = found.keys().find(|&volume| !shelves.contains_key(volume)) {
        let what = format!(
            "it was volume {}, and is no part of the set any more",
            other.0
        );
        return Err(found[other].unfit(what));
    }
    map.version += u64::from(elsewhere);
    let tables = shelf::read_tables(&upstreams, &map, &shelves).await;
    let (names, numbers) = tables.map_err(|(volume, status)| {
        let visitor = found[&volume].visitor();
        visitor.refused("a table of what has moved can't be read", status)
    })?;
    let places: Vec<_> = map.places().collect();
    let buckets = Arc::new(Buckets::new(upstreams, map, names, numbers));
    let mut hidden = Vec::new();
    let mut root = None;
    for (bucket, place) in places {
        let visitor = found[&place.volume].visitor();
        let at = &shelves[&place.volume].buckets;
        let own = visitor
            .directory(at, shelf::bucket_name(bucket, place.moved), first)
            .await?;
        let located = buckets
            .locate(bucket)
            .map_err(|s| visitor.refused("bucket", s))?;
        let find = async |name: &'static [u8]| {
            let found = visitor.directory(&own, name.into(), first).await;
            found.map(|server| located.key(&server))
        };
        hidden.push(Hidden {
            staging: find(b"staging").await?,
            placed: find(b"placed").await?,
        });
        if bucket == HOME {
            let server = visitor.shown(&own, first).await?;
            root = Some(Handle {
                bucket,
                key: located.key(&server),
            });
        }
    }
    if first {
        found[&Volume(0)].write_label(set, Volume(0)).await?;
    }
    let root = root.ok_or_else(|| SetupError::Unanswered("no volume".into()))?;
    Ok(Volumes {
        buckets,
        hidden,
        root,
        shelves,
    })
}

/// The map as it can be told from the volumes alone, if no move was under way.
async fn recovered(found: &BTreeMap<Volume, Visited>) -> Result<Map, SetupError> {
    let last = found.keys().last().map_or(0, |volume| volume.0);
    let mut map = Map::first(vec![String::new(); usize::from(last) + 1], 1);
    map.buckets.clear();
    let mut places = BTreeMap::new();
    for number in 0..=last {
        let member = &mut map.volumes[usize::from(number)];
        let Some(visited) = found.get(&Volume(number)) else {
            member.state = Use::Removed;
            continue;
        };
        member.url = visited.location.url.clone();
        let shelf = visited.shelf().await?;
        let visitor = visited.visitor();
        for name in visitor.list(&shelf.tables).await? {
            member.tables.extend(shelf::table_number(&name));
        }
        member.tables.sort_unstable();
        for name in visitor.list(&shelf.buckets).await? {
            let Some((bucket, moved)) = shelf::bucket_of(&name) else {
                continue;
            };
            map.version = map.version.max(moved + 1);
            let place = Place {
                volume: Volume(number),
                moved,
            };
            if places.insert(bucket, place).is_some() {
                return Err(visited.unfit(format!(
                    "bucket {} is on two volumes: it was moving, and the log that says which holds is lost",
                    bucket.0
                )));
            }
        }
    }
    for (expected, (bucket, place)) in places.into_iter().enumerate() {
        if bucket.0 as usize != expected {
            let what = format!("bucket {expected} is on none of the volumes that are named");
            let url = "the set".into();
            return Err(SetupError::Unfit { url, what });
        }
        map.buckets.push(place);
    }
    Ok(map)
}

/// Makes a volume that was never used part of a set; gives its directories.
///
/// # Errors
/// [`SetupError`].
pub async fn add(visited: &Visited, set: Set, volume: Volume) -> Result<Shelf, SetupError> {
    match &visited.label {
        None => {}
        // An addition that did not go to its end.
        Some(label) if (label.set, label.volume) == (set, volume) => {}
        Some(_) => return Err(visited.unfit("it is part of a set already".into())),
    }
    visited.visitor().prepare(&visited.top).await?;
    let shelf = visited.shelf().await?;
    if visited.label.is_none() {
        visited.write_label(set, volume).await?;
    }
    Ok(shelf)
}

impl Visited {
    fn visitor(&self) -> Visitor<'_> {
        Visitor {
            upstream: &self.upstream,
            url: &self.location.url,
        }
    }

    fn unfit(&self, what: String) -> SetupError {
        self.visitor().unfit(what)
    }

    async fn shelf(&self) -> Result<Shelf, SetupError> {
        let visitor = self.visitor();
        let own = visitor.directory(&self.top, TOP, false).await?;
        Ok(Shelf {
            top: self.top.clone(),
            buckets: visitor.directory(&own, BUCKETS, false).await?,
            tables: visitor.directory(&own, TABLES, false).await?,
        })
    }

    async fn write_label(&self, set: Set, volume: Volume) -> Result<(), SetupError> {
        let label = Label { set, volume };
        if self.location.is_group() {
            self.visitor().write_handles(&self.top).await?;
        }
        self.visitor().write_label(&self.top, &label).await
    }

    /// Takes away the label of a volume that is no part of the set any more.
    ///
    /// # Errors
    /// [`SetupError`].
    pub async fn release(&self) -> Result<(), SetupError> {
        let visitor = self.visitor();
        let dir = visitor.directory(&self.top, TOP, false).await?;
        let ask = Ask::Remove(crate::setup::at(&dir, LABEL));
        visitor.ask("REMOVE", ask).await.map(drop)
    }
}

fn at(dir: &Fh, name: Bytes) -> NamePlace {
    NamePlace {
        dir: dir.clone(),
        name,
    }
}

/// Says nothing of the key or of a handle.
fn handles_text(top: &Fh) -> Bytes {
    let mut hasher = blake3::Hasher::new_derive_key("quorate v1 router handles");
    hasher.update(top);
    hasher.finalize().to_hex()[..32].to_string().into()
}

struct Visitor<'a> {
    upstream: &'a Upstream,
    url: &'a str,
}

/// MNT3ERR_SERVERFAULT.
const SERVER_FAULT: u32 = 10_006;

/// The handle of an export.
async fn mount(location: &Location, own: &Upstream) -> Result<Fh, SetupError> {
    let url = || location.url.clone();
    let server = match location.mount == location.nfs {
        true => own.clone(),
        false => Upstream::start(location.mount.clone()),
    };
    let mut w = Writer::default();
    w.opaque(location.path.as_bytes());
    let results = server.call(MOUNT, 1, &Who::root(), &w.out).await;
    let results = results.map_err(|_| SetupError::Unanswered(url()))?;
    mounted(results).map_err(|refused| match refused {
        Some(status) => SetupError::Mount { url: url(), status },
        None => SetupError::Unanswered(url()),
    })
}

/// The handle in the results of a MOUNT; or with which status it is refused, none where that says nothing about the export.
pub(crate) fn mounted(results: Bytes) -> Result<Fh, Option<u32>> {
    let r = &mut Reader::new(results);
    match r.u32() {
        Ok(0) => {}
        // What a front says whose group does not answer: MOUNT has no word for later.
        Ok(SERVER_FAULT) | Err(_) => return Err(None),
        Ok(status) => return Err(Some(status)),
    }
    r.opaque(MAX_HANDLE_BYTES, "handle").map_err(|_| None)
}

/// What stands on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub set: Set,
    pub volume: Volume,
}

impl Label {
    pub fn text(&self) -> Bytes {
        let set: String = self.set.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("quorate-route 2 set {set} volume {}", self.volume.0).into()
    }

    pub fn parse(text: &[u8]) -> Option<Label> {
        let text = std::str::from_utf8(text).ok()?;
        let rest = text.strip_prefix("quorate-route 2 set ")?;
        let (set, volume) = rest.split_once(" volume ")?;
        let byte = |at: usize| u8::from_str_radix(set.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..set.len()).step_by(2).map(byte).collect();
        Some(Label {
            set: bytes?.try_into().ok()?,
            volume: Volume(volume.parse().ok()?),
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
        let given = self.upstream.ask(&Who::root(), ask).await;
        given.map_err(|status| self.refused(what, status))
    }

    async fn look(&self, dir: &Fh, name: Bytes) -> Result<Option<Fh>, SetupError> {
        let dir = dir.clone();
        let ask = Ask::Lookup(at(&dir, name));
        match self.upstream.ask(&Who::root(), ask).await {
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
        let place = at(dir, name.clone());
        let new = NewAttrs {
            mode: Some(mode),
            ..NewAttrs::default()
        };
        self.ask("MKDIR", Ask::Mkdir(place, new)).await?;
        let made = self.look(dir, name).await?;
        made.ok_or_else(|| self.refused("MKDIR", Status::ServerFault))
    }

    /// A directory of user 0 alone.
    async fn directory(&self, dir: &Fh, name: Bytes, may_make: bool) -> Result<Fh, SetupError> {
        let made = self.find(dir, name, 0o700, may_make).await?;
        if self.attrs(&made).await?.uid() != 0 {
            return Err(self.unfit(
                "the server takes user 0 for another: export it with no_root_squash to the router"
                    .into(),
            ));
        }
        Ok(made)
    }

    async fn shown(&self, dir: &Fh, may_make: bool) -> Result<Fh, SetupError> {
        let name = Bytes::from_static(b"root");
        self.find(dir, name, 0o755, may_make).await
    }

    async fn find(
        &self,
        dir: &Fh,
        name: Bytes,
        mode: u32,
        may_make: bool,
    ) -> Result<Fh, SetupError> {
        if may_make {
            return self.make(dir, name, mode).await;
        }
        let what = format!("{} is missing there", String::from_utf8_lossy(&name));
        let found = self.look(dir, name).await?;
        found.ok_or_else(|| self.unfit(what))
    }

    /// All names in a directory.
    async fn list(&self, dir: &Fh) -> Result<Vec<Bytes>, SetupError> {
        let root = Who::root();
        let entries = shelf::list(|ask| self.upstream.ask(&root, ask), dir).await;
        entries.map_err(|status| self.refused("READDIR", status))
    }

    /// Makes the router's own directories, after a look at whether the server does what is needed.
    async fn prepare(&self, top: &Fh) -> Result<(), SetupError> {
        let own = self.directory(top, TOP, true).await?;
        self.probe(&own).await?;
        self.directory(&own, BUCKETS, true).await?;
        self.directory(&own, TABLES, true).await?;
        Ok(())
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
        let place = at(&directory, LABEL);
        self.ask("SYMLINK", Ask::Symlink(place, label.text()))
            .await?;
        Ok(())
    }

    async fn write_handles(&self, top: &Fh) -> Result<(), SetupError> {
        let own = self.make(top, TOP, 0o700).await?;
        if self.look(&own, HANDLES).await?.is_some() {
            return Ok(());
        }
        let ask = Ask::Symlink(at(&own, HANDLES), handles_text(top));
        self.ask("SYMLINK", ask).await.map(drop)
    }

    /// Refuses a group whose objects have other handles than those that stubs were made for: all of these would lead nowhere.
    async fn check_handles(&self, top: &Fh) -> Result<(), SetupError> {
        let Some(own) = self.look(top, TOP).await? else {
            return Ok(());
        };
        // There is none where the volume was first used by an earlier version.
        let Some(link) = self.look(&own, HANDLES).await? else {
            return Ok(());
        };
        match self.ask("READLINK", Ask::Readlink(link)).await? {
            Given::Text(text) if text == handles_text(top) => Ok(()),
            _ => Err(self.unfit(
                "it was first used with another key: all routers and mounts of a volume use the same client's key for a group \
                 (FILE.toml?key=FILE), since handles are made with it"
                    .into(),
            )),
        }
    }

    /// Whether a handle stays the same when its object moves to another directory, and stubs can be made.
    async fn probe(&self, directory: &Fh) -> Result<(), SetupError> {
        let name = Bytes::from_static(b"probe");
        let one = self.directory(directory, name.clone(), true).await?;
        let two = self.directory(&one, Bytes::from_static(b"a"), true).await?;
        let before = self.directory(&two, name.clone(), true).await?;
        let at = |dir: &Fh| at(dir, name.clone());
        self.ask("RENAME", Ask::Rename(at(&two), at(&one))).await?;
        let after = self.look(&one, name.clone()).await?;
        let stub = crate::coordinator::stub_attrs(HOME);
        self.ask("SETATTR", Ask::SetAttr(before.clone(), stub))
            .await?;
        let is_stub = self.attrs(&before).await?.stub() == Some(HOME);
        self.ask("RMDIR", Ask::Rmdir(at(&one))).await?;
        let two = NamePlace {
            dir: one.clone(),
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
        };
        assert_eq!(Label::parse(&label.text()), Some(label.clone()));
        for wrong in ["", "quorate-route 1", "quorate-route 2 set aa volume 3"] {
            assert_eq!(Label::parse(wrong.as_bytes()), None);
        }
    }
}
