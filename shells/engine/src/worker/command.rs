//! What a worker is told besides submissions.

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::LaneLoad;
use polyrail_core::time::Instant;
use polyrail_core::units::PeerId;

use super::Loop;
use crate::intake::End;
use crate::post::Command;

impl Loop<'_> {
    pub(super) fn commands(&mut self, now: Instant) -> bool {
        let commands = self.post.take_commands();
        let busy = !commands.is_empty();
        for command in commands {
            self.command(now, command);
        }
        busy
    }

    /// What a peer has said, as core knows it: which works have arrived, the lane's transport has to read.
    fn understand(&mut self, peer: PeerId, frame: Frame) -> Frame {
        match frame {
            // Of its own lanes.
            Frame::Fenced {
                lane,
                epoch,
                delivered,
            } if self.around.fabric.shared().peer(lane.rail()) == Some(peer) => Frame::Fenced {
                lane,
                epoch,
                delivered: self.endpoint.arrived(lane, epoch, delivered),
            },
            other => other,
        }
    }

    /// What its lanes hold.
    pub(crate) fn lanes(&self) -> Vec<LaneLoad> {
        self.core.lanes().collect()
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::AttachLocal(segment, region) => self.endpoint.attach_local(segment, region),
            Command::DetachLocal(segment) => self.endpoint.detach_local(segment),
            Command::AttachRemote(segment, region) => self.endpoint.attach_remote(segment, region),
            Command::DetachRemote(segment) => self.endpoint.detach_remote(segment),
            Command::AttachRail(rail, address) => self.endpoint.attach_rail(rail, address),
            Command::Address(address, is_there) => self.endpoint.set_there(address, is_there),
            Command::Rail(rail, is_used) => self.endpoint.set_used(rail, is_used),
            Command::AttachDisk(disk) => self.disks.add(disk),
            Command::InstallPlan(id, plan) => {
                let installed = self.core.install_plan(now, id, &plan);
                debug_assert!(installed, "the tables are as large as the engine's numbers");
            }
            Command::RetirePlan(id) => self.core.retire_plan(id),
            Command::StagedEnded(id, how) => {
                self.handover.end(now, id, &how);
                self.core.hand_back(id, &how);
            }
            Command::Frame(peer, frame) => {
                if let Frame::Fenced { lane, epoch, .. } = frame {
                    self.post.fences.answered(now, lane, epoch);
                }
                let frame = self.understand(peer, frame);
                self.core.handle_frame(now, peer, &frame);
            }
            Command::PeerGone(peer, proof) => self.core.handle_peer_gone(now, peer, proof),
            Command::ForgetPeer(lost) => self.lost.add(now, lost),
            Command::Cancel(row) => self.intake.ask(End::Cancel(row)),
            Command::CaughtUp => self.catch_up.has_looked(),
            Command::Room => self.core.handle_wake(),
            Command::Lanes(question) => question.answer(self.lanes()),
            Command::ShutDown(at) => self.intake.ask(End::ShutDown(at)),
        }
    }
}
