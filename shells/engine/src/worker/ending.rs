//! The end of a worker.

use super::Loop;

impl Drop for Loop<'_> {
    /// However the thread ends: whoever still waits is told the truth about what is left.
    fn drop(&mut self) {
        for ticket in self.unseen.drain(..) {
            ticket.go(&self.around.plane);
        }
        let rows = self.post.batches().close();
        for (row, batch) in rows {
            let open = self.intake.open.get(usize::from(row.index));
            let open = open.filter(|open| open.row == row);
            let ended = batch.abandon(open.map_or(0, |open| open.requests.len()));
            ended.tell(|ticket| ticket.go(&self.around.plane));
        }
    }
}
