//! polyrail-tcp
