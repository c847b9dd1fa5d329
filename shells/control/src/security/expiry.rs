//! When a certificate ends, and when that is said.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// So long before a certificate ends it is said that it will.
const AHEAD: u64 = 7 * DAY;

/// Later than any certificate ends: the last second of the year 9999.
const NEVER: Duration = Duration::from_secs(253_402_300_799);

/// When a certificate ends, in seconds since 1970.
pub(super) struct Expiry {
    pub(super) ends_at: u64,
    /// When that was said last.
    said_at: AtomicU64,
}

impl Expiry {
    /// Of this certificate. `None`: it has no end.
    pub(super) fn of(
        certificate: &CertificateDer<'_>,
        algorithms: &[&dyn rustls::pki_types::SignatureVerificationAlgorithm],
    ) -> Option<Self> {
        let parsed = ParsedCertificate::try_from(certificate).ok()?;
        // Who checks it at a time when it has ended is told when that was, whoever has signed it.
        let late = UnixTime::since_unix_epoch(NEVER);
        let none = RootCertStore::empty();
        let checked = rustls::client::verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &none,
            &[],
            late,
            algorithms,
        );
        match checked {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after, ..
            })) => Some(Self {
                ends_at: not_after.as_secs(),
                said_at: AtomicU64::new(0),
            }),
            _ => None,
        }
    }

    /// Says it, if it is time to.
    pub(super) fn remind(&self, now: u64, say: impl FnOnce(String)) {
        let said_at = self.said_at.load(Relaxed);
        if now + AHEAD < self.ends_at || now < said_at.saturating_add(DAY) {
            return;
        }
        let swapped = self
            .said_at
            .compare_exchange(said_at, now, Relaxed, Relaxed);
        if swapped.is_err() {
            return;
        }
        say(match self.ends_at.checked_sub(now) {
            None | Some(0) => format!(
                "security/certificate has ended {} ago: peers refuse this engine",
                span(now - self.ends_at)
            ),
            Some(left) => format!(
                "security/certificate ends in {}: peers refuse this engine then; another one is taken by a reload",
                span(left)
            ),
        });
    }
}

/// `3 days`.
fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..HOUR => (seconds / 60, "minute"),
        HOUR..DAY => (seconds / HOUR, "hour"),
        _ => (seconds / DAY, "day"),
    };
    match count {
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_for_a_week_once_a_day() {
        const END: u64 = 100 * DAY;
        // (now, what is said)
        let cases = [
            (0, None),
            (END - AHEAD - 1, None),
            (END - AHEAD, Some("ends in 7 days")),
            (END - AHEAD + DAY - 1, None),
            (END - AHEAD + DAY, Some("ends in 6 days")),
            (END - DAY - HOUR, Some("ends in 1 day")),
            (END - 1, Some("ends in 0 minutes")),
            (END + 1, None),
            (END + DAY, Some("has ended 1 day ago")),
            // Clocks go back.
            (END - 30 * DAY, None),
            (END + 2 * DAY, Some("has ended 2 days ago")),
        ];
        let expiry = Expiry {
            ends_at: END,
            said_at: AtomicU64::new(0),
        };
        for (now, expected) in cases {
            let mut said = None;
            expiry.remind(now, |text| said = Some(text));
            match (&said, expected) {
                (Some(said), Some(expected)) => assert!(said.contains(expected), "{said}"),
                (said, expected) => assert_eq!(said.is_some(), expected.is_some(), "{now}"),
            }
        }
    }
}
