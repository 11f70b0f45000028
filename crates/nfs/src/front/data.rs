//! The content of files and symbolic links.

use bytes::Bytes;
use quorate_files::op::{MAX_IO_BYTES, Place, Read, Write};
use quorate_files::{Action, Answer, Target};

use super::{Caller, Done, Front, another_kind};
use crate::reply::version;
use crate::status::Status;

/// `stable_how`: all of it is as durable as it will ever be.
const FILE_SYNC: u32 = 2;

impl Front {
    pub(super) async fn readlink(&self, caller: &Caller, handle: &[u8]) -> Done {
        let object = self.object(caller, handle)?;
        let action = Action::Readlink(object.ino);
        let seen = self.seen(&object.who, vec![object.ino], action).await?;
        let mut reply = self.reply(seen.status());
        reply.after(seen.after(0));
        match &seen.outcome {
            Err(_) => {}
            Ok(Answer::Bytes(target)) => reply.w.opaque(target),
            Ok(_) => return another_kind(),
        }
        Ok(reply)
    }

    pub(super) async fn read(
        &self,
        caller: &Caller,
        handle: &[u8],
        offset: u64,
        count: u32,
    ) -> Done {
        let object = self.object(caller, handle)?;
        let op = Read {
            target: Target::Unopened(object.ino),
            offset,
            len: count.min(MAX_IO_BYTES as u32),
        };
        let read = self.volume.read(&object.who, op).await?;
        self.was_read(&read.attr);
        let mut reply = self.reply(Status::Ok);
        reply.after(Some(&read.attr));
        reply.w.u32(read.data.len() as u32);
        let end = offset.saturating_add(read.data.len() as u64);
        reply.w.bool(end >= read.attr.size);
        reply.w.opaque(&read.data);
        Ok(reply)
    }

    /// A write is agreed, and so durable, when it is answered.
    pub(super) async fn write(
        &self,
        caller: &Caller,
        handle: &[u8],
        offset: u64,
        data: Bytes,
    ) -> Done {
        let object = self.changeable(caller, handle)?;
        let count = data.len() as u32;
        let op = Write {
            target: Target::Unopened(object.ino),
            place: Place::At(offset),
            data,
        };
        let written = self.volume.write(&object.who, op).await?;
        let mut reply = self.reply(Status::Ok);
        reply.changed(Some(written.before), Some(&written.attr));
        reply.w.u32(count);
        reply.w.u32(FILE_SYNC);
        reply.w.fixed(&self.settings.secrets.verifier);
        Ok(reply)
    }

    /// Nothing waits to be made durable.
    pub(super) async fn commit(&self, caller: &Caller, handle: &[u8]) -> Done {
        let object = self.object(caller, handle)?;
        let target = Target::Ino(object.ino);
        let attr = self.volume.get_attr(&object.who, target).await?;
        let mut reply = self.reply(Status::Ok);
        reply.changed(Some(version(&attr)), Some(&attr));
        reply.w.fixed(&self.settings.secrets.verifier);
        Ok(reply)
    }
}
