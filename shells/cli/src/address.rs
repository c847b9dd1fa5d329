//! Addresses and names, as they are written on the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

/// Local rail addresses, in order. A type of its own so that clap sees one value and not many.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rails(pub(crate) Vec<IpAddr>);

/// `a,b,…`: addresses of this host, each once.
pub(crate) fn rails(text: &str) -> Result<Rails, String> {
    let mut rails = Vec::new();
    for part in text.split(',') {
        let rail: IpAddr = part.parse().map_err(|_| {
            format!("\"{part}\" is not an IP address; list this host's, such as 10.0.0.1,10.0.1.1")
        })?;
        if rails.contains(&rail) {
            return Err(format!("{rail} is listed twice; each rail needs its own"));
        }
        rails.push(rail);
    }
    Ok(Rails(rails))
}

/// `HOST:PORT` of a peer; the host may be a name.
pub(crate) fn target(text: &str) -> Result<String, String> {
    let wrong = || {
        format!("\"{text}\" is not HOST:PORT; write it like 10.0.0.2:7000, [::1]:7000 or host:7000")
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let strange = |c: char| c.is_whitespace() || c == '/' || (c == ':' && !bracketed);
    if host.is_empty() || port == 0 || host.contains(strange) {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

/// `ADDRESS:PORT` of this host to listen on; port 0 lets the kernel choose. The address may be a name of this host's, and
/// none is every address.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let wrong = || {
        format!(
            "\"{text}\" is not ADDRESS:PORT; write it like 127.0.0.1:7000, localhost:7000, :7000 for every address, or \
             port 0 for any"
        )
    };
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if host.is_empty() {
        return Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port));
    }
    let strange = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '[' | ']');
    if host.contains(strange) {
        return Err(wrong());
    }
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|e| {
        format!("\"{host}\" of \"{text}\" is no name that leads to an address: {e}")
    })?;
    // Where a name has both, most peers dial the older kind.
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(wrong)
}

/// A name that fits in one word of one line.
pub(crate) fn name(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 255;
    if text.is_empty() || text.len() > BYTES_MAX || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!(
            "\"{text}\" is not a name; give 1 to {BYTES_MAX} printable ASCII characters, no spaces"
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_are_addresses_each_once() {
        let two = rails("127.0.0.1,127.0.0.2").unwrap();
        assert_eq!(two.0.len(), 2);
        for text in [
            "",
            ",",
            "127.0.0.1,",
            "eth0",
            "127.0.0.1:80",
            "::1,::1",
            "300.0.0.1",
        ] {
            assert!(rails(text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_have_a_host_and_a_port() {
        for text in ["127.0.0.1:1", "localhost:65535", "[::1]:7000"] {
            assert_eq!(target(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:0",
            "host:65536",
            "::1:7",
            "a b:1",
            "h/s:1",
        ] {
            assert!(target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_listens_at_an_address_a_name_or_everywhere() {
        // (written, what it is)
        let cases = [
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("[::1]:7", "[::1]:7"),
            ("localhost:7", "127.0.0.1:7"),
            (":7", "0.0.0.0:7"),
        ];
        for (text, expected) in cases {
            assert_eq!(listen(text), Ok(expected.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "7",
            "localhost",
            "localhost:",
            ":x",
            "::1:7",
            "a b:7",
            "h/s:7",
            "127.0.0.1:65536",
        ] {
            let error = listen(text).unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn names_are_one_word() {
        assert!(name("node-7").is_ok());
        for text in ["", "two words", "line\nbreak", "größe", &"x".repeat(256)] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
