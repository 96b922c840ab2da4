//! Certificates and keys: what is in the files, and which of them a failed handshake is about.
//!
//! The path of a request reads the files and nothing more. Dates, and whether key and certificate belong
//! together, are looked at when something has failed, or when somebody asks ([`check_files`]).

use std::path::{Path, PathBuf};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, UnixTime},
    sign::CertifiedKey,
};

use crate::{
    domain::lease::Timestamp,
    pem::{self, Fault, certificates, day, load, not_accepted, private_key, validity},
    store::{StoreError, etcd::channel::ALPN},
};

impl From<Fault> for StoreError {
    fn from(Fault { place, reason }: Fault) -> Self {
        Self::Credentials { path: place, reason }
    }
}

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
        for certificate in &certificates(&path.display().to_string(), &load(path)?)? {
            all.push(dates_of(path, certificate)?);
        }
    }
    let Some((cert, key)) = files.pair()? else { return Ok(all) };
    let chain = certificates(&cert.display().to_string(), &load(cert)?)?;
    let private = private_key(&key.display().to_string(), &load(key)?)?;
    let own = chain.first().map(|first| dates_of(cert, first)).transpose()?;
    match CertifiedKey::from_der(chain, private, &default_provider()) {
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

/// What TLS needs; only whether the files can be used is looked at.
pub(crate) fn client_config(files: &TlsFiles) -> Result<ClientConfig, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &files.cacert {
        // A bundle may hold one that TLS cannot use, beside the one that matters.
        let all = certificates(&path.display().to_string(), &load(path)?)?;
        if let (0, _) = roots.add_parsable_certificates(all) {
            return Err(fault(path, "holds no certificate that can be used as a CA's"));
        }
    }
    let identity = match files.pair()? {
        None => None,
        Some((cert, key)) => Some((
            certificates(&cert.display().to_string(), &load(cert)?)?,
            private_key(&key.display().to_string(), &load(key)?)?,
        )),
    };
    pem::client(roots, identity, ALPN).map_err(|error| {
        let place = files.key.as_deref().unwrap_or(Path::new("TLS"));
        fault_in(files).unwrap_or_else(|| fault(place, format!("cannot be used: {error}")))
    })
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
        other => Err(not_accepted(other)),
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

fn dates_of(path: &Path, certificate: &CertificateDer<'_>) -> Result<CertificateDates, StoreError> {
    let (not_before, not_after) =
        validity(certificate).ok_or_else(|| fault(path, "holds something that is no X.509 certificate"))?;
    Ok(CertificateDates { path: path.to_owned(), not_before, not_after })
}
