//! One host, and a peer that says what a test wants.

use super::StageMessage::*;
use super::*;

pub(super) const PEER: PeerId = PeerId(0);
pub(super) const SLOT: u64 = SLOT_BYTES as u64;

/// A host with two slots in either pool, and rows for three chunks.
pub(super) fn host() -> Staged<'static> {
    staged(2, 3, 8, [2, 2], StagedConfig::DEFAULT)
}

pub(super) fn ticket(index: u32, generation: u32) -> Ticket {
    Ticket { index, generation }
}

pub(super) fn user(offset: u64) -> Place {
    Place {
        segment: USER,
        offset,
    }
}

pub(super) fn says(staged: &mut Staged<'_>, at: Instant) -> Vec<StageMessage> {
    let said = std::iter::from_fn(|| staged.poll_message(at));
    said.map(|(_, message)| message).collect()
}

pub(super) fn stages(staged: &mut Staged<'_>) -> Vec<Stage> {
    std::iter::from_fn(|| staged.poll_stage()).collect()
}

/// The only stage that there is to carry out.
pub(super) fn stage(staged: &mut Staged<'_>) -> Stage {
    let stages = stages(staged);
    assert_eq!(stages.len(), 1, "{stages:?}");
    stages[0]
}

pub(super) fn hears(staged: &mut Staged<'_>, message: StageMessage) {
    assert_eq!(staged.handle_message(ms(1), PEER, &message), Ok(()));
    staged.audit().unwrap();
}

pub(super) fn ends(staged: &mut Staged<'_>, stage: Stage, report: Report) {
    assert_eq!(staged.handle_stage(ms(1), stage.id, &report), Ok(()));
    staged.audit().unwrap();
}

pub(super) fn used(staged: &Staged<'_>) -> [u32; 2] {
    [IN, OUT].map(|pool| staged.pool(pool).unwrap().used)
}

pub(super) fn quarantined(staged: &Staged<'_>) -> [u32; 2] {
    [IN, OUT].map(|pool| staged.pool(pool).unwrap().quarantined)
}

pub(super) fn ended(staged: &mut Staged<'_>) -> Option<Report> {
    match staged.poll_event()? {
        Event::Ended { report, .. } => Some(report),
        settled => panic!("{settled:?}"),
    }
}

pub(super) fn status(staged: &mut Staged<'_>) -> Option<(Status, Option<Cause>)> {
    ended(staged).map(|report| (report.status, report.cause))
}

/// A host with a write of this many chunks, all of which wait for their first hop's report; the peer has given slots.
pub(super) fn under_way(chunks: u64) -> (Staged<'static>, Vec<Stage>) {
    let mut host = host();
    host.submit(ms(0), &request(WRITE, 0, 0, chunks * SLOT, 2))
        .unwrap();
    for message in says(&mut host, ms(0)) {
        let Reserve { ticket, .. } = message else {
            panic!("{message:?}");
        };
        hears(
            &mut host,
            Reserved {
                ticket,
                slot: ticket.index % 2,
            },
        );
    }
    let begun = stages(&mut host);
    (host, begun)
}

/// A host that a peer has had copy something.
pub(super) fn copying(pool: PoolId) -> (Staged<'static>, Stage) {
    let mut host = host();
    let t = ticket(1, 1);
    hears(&mut host, Reserve { ticket: t, pool });
    hears(
        &mut host,
        Go {
            ticket: t,
            attempt: 1,
            place: user(7),
            length: 30,
        },
    );
    let copy = stage(&mut host);
    says(&mut host, ms(0));
    (host, copy)
}
