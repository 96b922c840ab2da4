//! Certificates and keys: what is in the files, and which of them a failed handshake is about.
//!
//! The path of a request reads the files and nothing more. Dates, and whether key and certificate belong
//! together, are looked at when something has failed, or when somebody asks ([`check_files`]).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustls::{
    CertificateError,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::{domain::lease::Timestamp, store::StoreError};

/// The files of mutual TLS; each may be absent.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TlsFiles {
    /// Who signs the servers' certificates.
    pub cacert: Option<PathBuf>,
    /// Our certificate, with its chain.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Is there any?
    #[must_use]
    pub const fn any(&self) -> bool {
        self.cacert.is_some() || self.cert.is_some() || self.key.is_some()
    }

    /// Certificate and key, or neither.
    pub(crate) fn pair(&self) -> Result<Option<(&Path, &Path)>, StoreError> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (Some(cert), None) => Err(fault(cert, "no key is configured for this certificate")),
            (None, Some(key)) => Err(fault(key, "no certificate is configured for this key")),
            (None, None) => Ok(None),
        }
    }
}

/// From when until when a certificate is valid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateDates {
    /// The file it is in.
    pub path: PathBuf,
    /// The first moment of its validity.
    pub not_before: Timestamp,
    /// The last.
    pub not_after: Timestamp,
}

/// Reads every file: it must be there and hold what it should, the key must belong to the certificate, and the
/// certificate must be valid now. A CA is not refused for its dates: a bundle keeps old ones, and TLS does not
/// ask.
///
/// # Errors
/// [`StoreError::Credentials`] with the file and the reason.
pub(crate) fn check_files(files: &TlsFiles, now: Timestamp) -> Result<Vec<CertificateDates>, StoreError> {
    let mut all = Vec::new();
    if let Some(path) = &files.cacert {
        for certificate in &certificates(path, &load(path)?)? {
            all.push(dates_of(path, certificate)?);
        }
    }
    let Some((cert, key)) = files.pair()? else { return Ok(all) };
    let chain = certificates(cert, &load(cert)?)?;
    let private = private_key(key, &load(key)?)?;
    let own = chain.first().map(|first| dates_of(cert, first)).transpose()?;
    match CertifiedKey::from_der(chain, private, &rustls::crypto::ring::default_provider()) {
        Ok(_) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            return Err(fault(key, format!("does not belong to the certificate {}", cert.display())));
        }
        // An old version 1 certificate, for one.
        Err(rustls::Error::InvalidCertificate(error)) => {
            return Err(fault(cert, format!("cannot be used: {error}")));
        }
        Err(other) => return Err(fault(key, format!("cannot be used: {other}"))),
    }
    if let Some(dates) = own {
        if dates.not_after < now {
            return Err(fault(cert, format!("expired on {}", day(dates.not_after))));
        }
        if now < dates.not_before {
            return Err(fault(cert, format!("not valid before {}", day(dates.not_before))));
        }
        all.push(dates);
    }
    Ok(all)
}

/// What tonic wants; only whether the files can be read is looked at.
pub(crate) fn client_config(files: &TlsFiles) -> Result<ClientTlsConfig, StoreError> {
    let mut config = ClientTlsConfig::new();
    if let Some(path) = &files.cacert {
        config = config.ca_certificate(Certificate::from_pem(load(path)?));
    }
    if let Some((cert, key)) = files.pair()? {
        config = config.identity(Identity::from_pem(load(cert)?, load(key)?));
    }
    Ok(config)
}

/// What is wrong with the files now, if anything is.
pub(crate) fn fault_in(files: &TlsFiles) -> Option<StoreError> {
    // The clock of the TLS library, which judges the server's certificate too.
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX).saturating_mul(1000);
    check_files(files, Timestamp(now)).err()
}

/// Which file a server's certificate that was not accepted speaks of, or what is wrong with that certificate.
pub(crate) fn about_server(
    error: &CertificateError,
    files: &TlsFiles,
    url: &str,
) -> Result<StoreError, String> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
    match error {
        // A bad signature: a CA of the same name with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Ok(match &files.cacert {
            Some(path) => fault_in(files)
                .unwrap_or_else(|| fault(path, format!("did not sign the certificate that {url} shows"))),
            None => return Err("no CA file is configured to check its certificate with".to_owned()),
        }),
        CertificateError::ExpiredContext { not_after, .. } => {
            Err(format!("its certificate expired on {}", day(timestamp(*not_after))))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            Err(format!("its certificate is not valid before {}", day(timestamp(*not_before))))
        }
        CertificateError::NotValidForNameContext { expected, presented } => Err(format!(
            "its certificate is not for {} but for {}",
            expected.to_str(),
            if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") }
        )),
        other => Err(format!("its certificate is not accepted: {other}")),
    }
}

/// What a server's alert says about our certificate; `None` if it is not about that.
pub(crate) fn about_alert(alert: &str, files: &TlsFiles, url: &str) -> Option<StoreError> {
    const OURS: [&str; 9] = [
        "BadCertificate",
        "UnsupportedCertificate",
        "CertificateRevoked",
        "CertificateExpired",
        "CertificateUnknown",
        "UnknownCA",
        "AccessDenied",
        "DecryptError",
        "CertificateRequired",
    ];
    OURS.contains(&alert).then(|| match &files.cert {
        Some(cert) => {
            fault_in(files).unwrap_or_else(|| fault(cert, format!("{url} does not accept it: {alert}")))
        }
        None => StoreError::NotReached {
            reason: format!("{url}: it asks for a client certificate, and none is configured"),
        },
    })
}

/// An error about a file.
pub(crate) fn fault(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Credentials { path: path.display().to_string(), reason: reason.into() }
}

fn load(path: &Path) -> Result<Vec<u8>, StoreError> {
    let bytes = fs::read(path).map_err(|error| {
        #[expect(clippy::wildcard_enum_match_arm, reason = "of a foreign enum that grows")]
        match error.kind() {
            io::ErrorKind::NotFound => fault(path, "no such file"),
            io::ErrorKind::IsADirectory => fault(path, "is a directory"),
            io::ErrorKind::PermissionDenied => fault(path, "may not be read: permission denied"),
            _ => fault(path, format!("cannot be read: {error}")),
        }
    })?;
    if bytes.is_empty() { Err(fault(path, "is empty")) } else { Ok(bytes) }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(fault(path, "holds no PEM certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(fault(path, format!("is not PEM: {error}"))),
    }
}

fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, StoreError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let encrypted = pem.windows(9).any(|part| part == b"ENCRYPTED");
        fault(
            path,
            if encrypted { "is encrypted: a key without a passphrase is needed" } else { "holds no PEM key" },
        )
    })
}

fn dates_of(path: &Path, certificate: &CertificateDer<'_>) -> Result<CertificateDates, StoreError> {
    let (not_before, not_after) =
        validity(certificate).ok_or_else(|| fault(path, "holds something that is no X.509 certificate"))?;
    Ok(CertificateDates { path: path.to_owned(), not_before, not_after })
}

/// The dates of a certificate. Eight fields into a fixed structure: an ASN.1 library would be ten crates.
fn validity(certificate: &[u8]) -> Option<(Timestamp, Timestamp)> {
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

fn day(at: Timestamp) -> String {
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
