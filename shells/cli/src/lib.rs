//! polyrail-cli
