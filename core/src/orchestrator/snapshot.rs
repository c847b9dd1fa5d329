//! A worker's core as it stands, written and read: what a recording begins with that has lost its beginning.
//!
//! [`Orchestrator::snapshot`] is one worker's state, [`Orchestrator::snapshot_shared`] what all workers share. Rows that
//! have never been used are left out. Settings are not in it: whoever reads it back has made a core of the same ones.

use core::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};
use serde::{Deserialize, Serialize as SerializeDerive};

use super::{
    BatchRow, Counted, Denials, Orchestrator, Posting, Queue, Reason, RequestRow, lane, peer,
};
use super::{PlanRow, Post};
use crate::rail::policies::Policies;
use crate::rail::spray::Line;
use crate::snapshot::{IntoRows, IntoSparse, Sparse, next, next_into};
use crate::table::Row;
use crate::time::Instant;
use crate::units::RailId;

/// Parts of a snapshot.
const PARTS: usize = 15;

/// All that is neither settings nor a table. `open_rails` is of one binding only.
macro_rules! plain {
    ($($field:ident: $type:ty,)*) => {
        #[derive(SerializeDerive, Deserialize)]
        struct Plain {
            $($field: $type,)*
        }

        impl<P> Orchestrator<'_, P> {
            fn plain(&self) -> Plain {
                // Without `..`: a new field is here, or in a table, or this does not compile.
                let Self {
                    $($field,)*
                    config: _, shared: _, open_rails: _,
                    plans: _, peers: _, lanes: _, requests: _, attempts: _, batches: _,
                } = self;
                Plain { $($field: $field.clone(),)* }
            }

            fn set_plain(&mut self, plain: Plain) {
                $(self.$field = plain.$field;)*
            }
        }
    };
}

plain! {
    compares: bool,
    may_hand_over: bool,
    denials: Denials,
    is_shut_down: bool,
    ready: Queue<{ peer::READY }>,
    waiting: Queue<{ peer::READY }>,
    changed_peers: Queue<{ peer::CHANGED }>,
    posts: Queue<{ lane::POST }>,
    actions: Queue<{ lane::ACTION }>,
    messages: Queue<{ lane::MESSAGE }>,
    changed_rails: Queue<{ lane::CHANGED }>,
    unbound: Queue<2>,
    urgent: u32,
    ended: Queue<3>,
    switched: Queue<1>,
    ended_batches: Queue<0>,
    posting: Option<Posting>,
    counted: Counted,
    line: Line,
    crowded: bool,
    bindable: bool,
    bindable_all: bool,
    made_room: bool,
    last_woken: u16,
    last_progress: (Instant, RailId),
    timed_requests: u32,
    lost_attempts: u32,
    carried_at_once: u8,
    lanes_used: usize,
    peers_used: usize,
    next_timeout: Instant,
    next_reason: Reason,
}

/// One worker's state, to be written.
struct Snapshot<'s, 'a, 'p>(&'s Orchestrator<'a, Policies<'p>>);

impl Serialize for Snapshot<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let core = self.0;
        let mut parts = serializer.serialize_tuple(PARTS)?;
        parts.serialize_element(&core.plain())?;
        let plans = || {
            (0..)
                .zip(core.plans.iter())
                .filter(|(_, row)| row.is_used())
        };
        parts.serialize_element(&Sparse(plans))?;
        let peers = core.peers.get(..core.peers_used).unwrap_or_default();
        parts.serialize_element(peers)?;
        let lanes = core.lanes.get(..core.lanes_used).unwrap_or_default();
        parts.serialize_element(lanes)?;
        let (rows, free, used) = core.requests.parts();
        parts.serialize_element(rows)?;
        parts.serialize_element(&free)?;
        parts.serialize_element(&used)?;
        let (rows, free, used) = core.attempts.parts();
        parts.serialize_element(rows)?;
        parts.serialize_element(&free)?;
        parts.serialize_element(&used)?;
        let (rows, free, used) = core.batches.parts();
        parts.serialize_element(rows)?;
        parts.serialize_element(&free)?;
        parts.serialize_element(&used)?;
        let policy = &core.config.policy;
        let shares = || policy.used_shares();
        parts.serialize_element(&Sparse(shares))?;
        parts.serialize_element(&policy.memory())?;
        parts.end()
    }
}

/// Reads one back, in place.
struct Restore<'s, 'a, 'p>(&'s mut Orchestrator<'a, Policies<'p>>);

impl<'de> Visitor<'de> for Restore<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the state of a worker's core")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        let core = self.0;
        let plain: Plain = next(&mut parts)?;
        let fits = plain.lanes_used <= core.lanes.len() && plain.peers_used <= core.peers.len();
        if !fits {
            return Err(A::Error::custom("more lanes or peers than the tables have"));
        }
        core.set_plain(plain);
        let plans = &mut *core.plans;
        let put = |index: u32, row: PlanRow| plans.get_mut(index as usize).map(|to| *to = row);
        next_into(&mut parts, IntoSparse::new(put))?;
        next_into(&mut parts, IntoRows(core.peers))?;
        next_into(&mut parts, IntoRows(core.lanes))?;
        let rows: IntoRows<'_, Row<RequestRow>> = IntoRows(core.requests.rows_mut());
        next_into(&mut parts, rows)?;
        core.requests
            .set_parts(next(&mut parts)?, next(&mut parts)?);
        next_into(&mut parts, IntoRows(core.attempts.rows_mut()))?;
        core.attempts
            .set_parts(next(&mut parts)?, next(&mut parts)?);
        let rows: IntoRows<'_, Row<BatchRow>> = IntoRows(core.batches.rows_mut());
        next_into(&mut parts, rows)?;
        core.batches.set_parts(next(&mut parts)?, next(&mut parts)?);
        let policy = &mut core.config.policy;
        let put = |index, shares| policy.put_shares(index, shares);
        next_into(&mut parts, IntoSparse::new(put))?;
        policy.set_memory(next(&mut parts)?);
        Ok(())
    }
}

impl Orchestrator<'_, Policies<'_>> {
    /// All that this worker's core has in mind. A core of the same settings and capacities that [restores](Self::restore)
    /// it decides as this one does from now on, if what workers share is [the same](Self::snapshot_shared) too.
    pub fn snapshot(&self) -> impl Serialize + '_ {
        Snapshot(self)
    }

    /// The same of what all workers share.
    pub fn snapshot_shared(&self) -> impl Serialize + '_ {
        (self.shared.snapshot(), self.config.policy.given())
    }

    /// Becomes what was written, in a core that has just been made. Returns the post that is out. After an error this core
    /// is of no use.
    pub fn restore<'de, D: Deserializer<'de>>(
        &mut self,
        deserializer: D,
    ) -> Result<Option<Post>, D::Error> {
        deserializer.deserialize_tuple(PARTS, Restore(self))?;
        Ok(self.posting.map(|posting| Post {
            lane: posting.lane,
            number: self.counted.last(),
        }))
    }

    /// The same for what workers share, of which none has made a call yet.
    pub fn restore_shared<'de, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<(), D::Error> {
        deserializer.deserialize_tuple(2, RestoreShared(self))
    }
}

struct RestoreShared<'s, 'a, 'p>(&'s Orchestrator<'a, Policies<'p>>);

impl<'de> Visitor<'de> for RestoreShared<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the state of what workers share")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(), A::Error> {
        next_into(&mut parts, self.0.shared.restore())?;
        let put = |index, row| self.0.config.policy.put_given(index, row);
        next_into(&mut parts, IntoSparse::new(put))
    }
}
