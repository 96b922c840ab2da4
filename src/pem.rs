//! Certificates and keys in PEM: reading them, their dates, and the words for what is wrong with them.

use std::{fmt, fs, io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
};

use crate::domain::lease::Timestamp;

/// What is wrong, and where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    /// A file's path, or the field that holds the text itself.
    pub place: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Fault {
    fn new(place: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self { place: place.to_string(), reason: reason.into() }
    }
}

/// Reads a file; an empty one is a fault.
pub(crate) fn load(path: &Path) -> Result<Vec<u8>, Fault> {
    let fault = |reason: &str| Fault::new(path.display(), reason);
    let bytes = fs::read(path).map_err(|error| {
        #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
        match error.kind() {
            io::ErrorKind::NotFound => fault("no such file"),
            io::ErrorKind::IsADirectory => fault("is a directory"),
            io::ErrorKind::PermissionDenied => fault("may not be read: permission denied"),
            _ => Fault::new(path.display(), format!("cannot be read: {error}")),
        }
    })?;
    if bytes.is_empty() { Err(fault("is empty")) } else { Ok(bytes) }
}

/// At least one certificate; `place` is the file, or the field, that a fault names.
pub(crate) fn certificates(place: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(Fault::new(place, "holds no PEM certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(Fault::new(place, format!("is not PEM: {error}"))),
    }
}

/// The first key.
pub(crate) fn private_key(place: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Fault> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let encrypted = pem.windows(9).any(|part| part == b"ENCRYPTED");
        Fault::new(
            place,
            if encrypted { "is encrypted: a key without a passphrase is needed" } else { "holds no PEM key" },
        )
    })
}

/// A client of TLS 1.2 and 1.3 that trusts these, shows this chain with its key, and asks for this protocol (ALPN).
///
/// # Errors
/// rustls's: key and chain cannot be used, or not together.
pub(crate) fn client(
    roots: RootCertStore,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    protocol: &[u8],
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, private)) => builder.with_client_auth_cert(chain, private)?,
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// What a person can do about a server's certificate that was not accepted.
pub(crate) fn not_accepted(error: &CertificateError) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate expired on {}", day(timestamp(*not_after)))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}", day(timestamp(*not_before)))
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is not for {} but for {}",
            expected.to_str(),
            if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") }
        ),
        other => format!("its certificate is not accepted: {other}"),
    }
}

/// The dates of a certificate. Eight fields into a fixed structure: an ASN.1 library would be ten crates.
pub(crate) fn validity(certificate: &[u8]) -> Option<(Timestamp, Timestamp)> {
    const SEQUENCE: u8 = 0x30;
    const VERSION: u8 = 0xa0;
    let certificate = of_tag(SEQUENCE, certificate)?.0;
    let mut fields = of_tag(SEQUENCE, certificate)?.0;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    for _ in ["serial number", "signature algorithm", "issuer"] {
        fields = element(fields)?.2;
    }
    let (not_before, rest) = moment(of_tag(SEQUENCE, fields)?.0)?;
    let (not_after, _) = moment(rest)?;
    Some((not_before, not_after))
}

/// The next element: its tag, what is in it, what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&short, mut rest) = rest.split_first()?;
    let mut length = usize::from(short);
    if short & 0x80 != 0 {
        let digits = usize::from(short & 0x7f);
        if digits == 0 || digits > 4 {
            return None;
        }
        let (long, after) = rest.split_at_checked(digits)?;
        length = long.iter().fold(0, |sum, &digit| (sum << 8) | usize::from(digit));
        rest = after;
    }
    let (inside, after) = rest.split_at_checked(length)?;
    Some((tag, inside, after))
}

fn of_tag(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, inside, after) = element(bytes)?;
    (found == tag).then_some((inside, after))
}

fn moment(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let (tag, text, after) = element(bytes)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let text = match tag {
        // RFC 5280: two digits of a year mean 1950 to 2049.
        UTC_TIME => format!("{}{text}", if text < "50" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    if text.len() != 14 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| text.get(from..to)?.parse::<i8>().ok();
    let year = text.get(..4)?.parse::<i16>().ok()?;
    let civil = jiff::civil::DateTime::new(
        year,
        part(4, 6)?,
        part(6, 8)?,
        part(8, 10)?,
        part(10, 12)?,
        part(12, 14)?,
        0,
    )
    .ok()?;
    // "Never" is written as the last second of 9999, which is later than jiff can say.
    let at = civil.to_zoned(jiff::tz::TimeZone::UTC).map_or(jiff::Timestamp::MAX, |zoned| zoned.timestamp());
    Some((Timestamp(at.as_second().saturating_mul(1000)), after))
}

fn timestamp(time: UnixTime) -> Timestamp {
    Timestamp(i64::try_from(time.as_secs()).unwrap_or(i64::MAX).saturating_mul(1000))
}

/// As a person reads it, in UTC.
pub(crate) fn day(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.0)
        .map_or_else(|_| "an impossible date".to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tag: u8, inside: &[u8]) -> Vec<u8> {
        let length = inside.len();
        let mut out = vec![tag];
        match u8::try_from(length) {
            Ok(short) if short < 0x80 => out.push(short),
            _ => out.extend([0x82, u8::try_from(length >> 8).unwrap(), u8::try_from(length & 0xff).unwrap()]),
        }
        [out, inside.to_vec()].concat()
    }

    fn certificate(version: bool, times: [(u8, &str); 2]) -> Vec<u8> {
        let validity = times.map(|(tag, text)| tagged(tag, text.as_bytes())).concat();
        let mut fields = if version { tagged(0xa0, &tagged(2, &[2])) } else { Vec::new() };
        for part in [tagged(2, &[7; 20]), tagged(0x30, &[]), tagged(0x30, &[1; 300]), tagged(0x30, &validity)]
        {
            fields.extend(part);
        }
        tagged(0x30, &[tagged(0x30, &fields), tagged(0x30, &[])].concat())
    }

    #[track_caller]
    fn case(times: [(u8, &str); 2], expected: Option<[&str; 2]>) {
        for version in [true, false] {
            let found = validity(&certificate(version, times));
            assert_eq!(
                found.map(|(from, to)| [day(from), day(to)]),
                expected.map(|both| both.map(Into::into))
            );
        }
    }

    #[test]
    fn dates_of_both_kinds_are_read() {
        case(
            [(0x17, "260102030405Z"), (0x17, "491231235959Z")],
            Some(["2026-01-02T03:04:05Z", "2049-12-31T23:59:59Z"]),
        );
        case(
            [(0x17, "500101000000Z"), (0x18, "99991231235959Z")],
            Some(["1950-01-01T00:00:00Z", "9999-12-30T22:00:00Z"]),
        );
        case([(0x17, "260102030405Z"), (0x17, "261332030405Z")], None);
        case([(0x17, "2601020304Z"), (0x17, "260102030405Z")], None);
        case([(0x17, "260102030405+0100"), (0x17, "260102030405Z")], None);
        case([(0x18, "2026010203040é"), (0x17, "260102030405Z")], None);
        case([(0x04, "260102030405Z"), (0x17, "260102030405Z")], None);
    }

    #[test]
    fn a_certificate_that_is_cut_or_bent_has_no_dates_and_does_no_harm() {
        let whole = certificate(true, [(0x17, "260102030405Z"), (0x18, "99991231235959Z")]);
        assert!(validity(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(validity(&whole[..length]), None);
        }
        for place in 0..whole.len() {
            for byte in 0..=u8::MAX {
                let mut bent = whole.clone();
                bent[place] = byte;
                let _ = validity(&bent); // it may have dates still; it must not panic
            }
        }
    }
}
