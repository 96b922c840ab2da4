//! As much of HTTPS as it takes to ask a Kubernetes API: about a millisecond a call, where kubectl takes a tenth of a
//! second.

use std::{
    io,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    sync::{Arc, Mutex},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::Value;

use super::process::PATIENCE;

/// Whom the server sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identity<'a> {
    /// Certificate and key.
    Certificate(&'a Path, &'a Path),
    Token(&'a str),
}

/// Asks one server, over one connection that it keeps.
#[derive(Debug)]
pub(crate) struct Rest {
    address: String,
    token: Option<String>,
    tls: Arc<ClientConfig>,
    connection: Mutex<Option<Connection>>,
}

type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// What came back: a status and a JSON document, or null where the answer is none.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// The document of an answer that must be a good one.
    #[track_caller]
    pub(crate) fn success(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.body
    }
}

impl Rest {
    pub(crate) fn new(address: &str, ca: &Path, identity: Identity<'_>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(ca));
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let (tls, token) = match identity {
            Identity::Certificate(certificate, key) => {
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                (tls.with_client_auth_cert(certificates(certificate), key).unwrap(), None)
            }
            Identity::Token(token) => (tls.with_no_client_auth(), Some(token.to_owned())),
        };
        Self { address: address.into(), token, tls: Arc::new(tls), connection: Mutex::new(None) }
    }

    /// An answer of whatever status. A document for PATCH is merged strategically: a list of conditions by their types.
    pub(crate) fn call(&self, method: &str, path: &str, document: Option<&Value>) -> io::Result<Answer> {
        let body = document.map(Value::to_string).unwrap_or_default();
        let kind =
            if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            request += &format!("Authorization: Bearer {token}\r\n");
        }
        request += &format!("Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}", body.len());

        let mut kept = self.connection.lock().unwrap();
        if let Some(mut connection) = kept.take() {
            match exchange(&mut connection, &request) {
                Ok(answer) => {
                    *kept = Some(connection);
                    return Ok(answer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {} // the server has gone since the last call, and may be back
            }
        }
        let mut connection = self.connect()?;
        let answer = exchange(&mut connection, &request)?;
        *kept = Some(connection);
        drop(kept);
        Ok(answer)
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?; // a frozen server accepts and says nothing
        stream.set_nodelay(true)?;
        let name = "127.0.0.1".try_into().unwrap();
        let session = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        Ok(BufReader::new(StreamOwned::new(session, stream)))
    }
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

fn exchange(connection: &mut Connection, request: &str) -> io::Result<Answer> {
    connection.get_mut().write_all(request.as_bytes())?;
    connection.get_mut().flush()?;
    let (status, body) = read_answer(connection)?;
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Status and body, whose length is told beforehand or chunk by chunk.
fn read_answer(from: &mut impl BufRead) -> io::Result<(u16, Vec<u8>)> {
    let head = read_line(from)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no HTTP answer: {head:?}")))?;
    let (mut length, mut chunked) = (0, false);
    loop {
        let line = read_line(from)?.to_ascii_lowercase();
        match line.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().map_err(io::Error::other)?,
            Some(("transfer-encoding", "chunked")) => chunked = true,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = Vec::new();
    if !chunked {
        from.take(length).read_to_end(&mut body)?;
        return Ok((status, body));
    }
    loop {
        let length = u64::from_str_radix(&read_line(from)?, 16).map_err(io::Error::other)?;
        from.take(length).read_to_end(&mut body)?;
        read_line(from)?;
        if length == 0 {
            return Ok((status, body));
        }
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().into())
}

#[test]
fn bodies_of_both_kinds() {
    let read = |text: &str| read_answer(&mut text.as_bytes()).unwrap();
    let whole = read("HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nX: y\r\n\r\nabcd");
    assert_eq!(whole, (404, b"abc".to_vec()));
    let chunked =
        read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n");
    assert_eq!(chunked, (200, b"abc0123456789".to_vec()));
    assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n"), (204, vec![]));
    assert!(read_answer(&mut "HTTP/1.1 200 OK\r\n".as_bytes()).is_err());
}
