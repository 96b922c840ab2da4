//! As much of HTTP/2 and of etcd's messages as the proxy must read: frames, and the transactions in them.
//!
//! Paths of requests are packed by HPACK and are not looked at. What a message is shows in its bytes: a commit is a
//! transaction that puts or deletes something, and no other message of etcd reads as one.

use std::collections::HashMap;

/// One HTTP/2 frame, its header included.
#[derive(Clone, Debug)]
pub(crate) struct Frame(Vec<u8>);

const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Frame {
    pub(crate) fn stream(&self) -> u32 {
        u32::from_be_bytes([self.0[5] & 0x7f, self.0[6], self.0[7], self.0[8]])
    }

    /// True of the frames that carry an answer, or its refusal, and not mere bookkeeping of the connection.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.0[3], DATA | HEADERS)
    }

    /// True of the frame that begins a message of the client: a request of any kind.
    pub(crate) fn begins_request(&self) -> bool {
        self.0[3] == HEADERS
    }

    /// The content of a DATA frame.
    fn data(&self) -> Option<&[u8]> {
        let body = &self.0[FRAME_HEADER..];
        match (self.0[3], self.0[4] & PADDED != 0) {
            (DATA, false) => Some(body),
            (DATA, true) => body.get(1..body.len().checked_sub(usize::from(*body.first()?))?),
            _ => None,
        }
    }
}

/// Cuts one direction of a connection into frames. What is not plain HTTP/2 (TLS) comes out as it went in.
#[derive(Debug, Default)]
pub(crate) struct Cutter {
    pending: Vec<u8>,
    /// Of the client's direction: the preface was seen. The server's has none.
    past_preface: bool,
    opaque: bool,
    begun: bool,
}

/// What can be passed on by now.
#[derive(Debug)]
pub(crate) enum Piece {
    Frame(Frame),
    Opaque(Vec<u8>),
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => &frame.0,
            Self::Opaque(bytes) => bytes,
        }
    }
}

impl Cutter {
    pub(crate) fn of_server() -> Self {
        Self { past_preface: true, ..Self::default() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        // A server has no preface. A TLS record begins with its type, 20 to 23, an HTTP/2 frame with a small length.
        self.opaque |=
            !self.begun && self.past_preface && bytes.first().is_some_and(|byte| (20..=23).contains(byte));
        self.begun = true;
        self.pending.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        if !self.past_preface && !self.opaque {
            let known = self.pending.len().min(PREFACE.len());
            if self.pending[..known] != PREFACE[..known] {
                self.opaque = true;
            } else if known == PREFACE.len() {
                self.past_preface = true;
                pieces.push(Piece::Opaque(self.pending.drain(..known).collect()));
            } else {
                return pieces;
            }
        }
        if self.opaque {
            pieces.push(Piece::Opaque(std::mem::take(&mut self.pending)));
            return pieces;
        }
        while let Some(&[a, b, c, ..]) = self.pending.get(..FRAME_HEADER) {
            let length = FRAME_HEADER + (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c));
            if self.pending.len() < length {
                break;
            }
            pieces.push(Piece::Frame(Frame(self.pending.drain(..length).collect())));
        }
        pieces
    }
}

/// Puts the messages of a connection's streams together.
#[derive(Debug, Default)]
pub(crate) struct Messages(HashMap<u32, Vec<u8>>);

impl Messages {
    /// The transaction that this frame completes, if it does.
    pub(crate) fn push(&mut self, frame: &Frame) -> Option<Txn> {
        const PREFIX: usize = 5; // gRPC: one byte for compression, four for the length
        let data = frame.data()?;
        let pending = self.0.entry(frame.stream()).or_default();
        pending.extend_from_slice(data);
        let length = PREFIX + u32::from_be_bytes(pending.get(1..PREFIX)?.try_into().ok()?) as usize;
        let message = pending.get(PREFIX..length)?;
        let txn = Txn::read(message);
        pending.drain(..length);
        txn
    }
}

/// A transaction as it was sent, in words.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Txn {
    /// `mod KEY = 7`, `create KEY = 0`, `version KEY = 0`, `value KEY = TEXT`.
    pub(crate) compares: Vec<String>,
    /// What is done if they hold: `put KEY`, `del KEY`, `get KEY`; a range is `KEY..END`.
    pub(crate) then: Vec<String>,
    /// What is done if not.
    pub(crate) otherwise: Vec<String>,
}

impl Txn {
    /// True if it may change something.
    pub(crate) fn is_commit(&self) -> bool {
        self.writes().next().is_some()
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = &str> {
        let all = self.then.iter().chain(&self.otherwise).map(String::as_str);
        all.filter(|operation| operation.starts_with("put ") || operation.starts_with("del "))
    }

    /// Reads a message; nothing if it is not a transaction.
    fn read(message: &[u8]) -> Option<Self> {
        let mut txn = Self::default();
        for (number, value) in fields(message)? {
            match (number, value) {
                (1, Field::Bytes(bytes)) => txn.compares.push(compare(bytes)?),
                (2, Field::Bytes(bytes)) => txn.then.push(operation(bytes)?),
                (3, Field::Bytes(bytes)) => txn.otherwise.push(operation(bytes)?),
                _ => return None,
            }
        }
        (!txn.then.is_empty() || !txn.otherwise.is_empty()).then_some(txn)
    }
}

fn compare(message: &[u8]) -> Option<String> {
    let (mut sign, mut target, mut key, mut end, mut operand) = (0, 0, String::new(), None, "0".into());
    for (number, value) in fields(message)? {
        match (number, value) {
            (1, Field::Number(value)) => sign = usize::try_from(value).ok()?,
            (2, Field::Number(value)) => target = usize::try_from(value).ok()?,
            (3, Field::Bytes(bytes)) => key = text(bytes),
            (4..=6 | 8, Field::Number(value)) => operand = value.to_string(),
            (7, Field::Bytes(bytes)) => operand = text(bytes),
            (64, Field::Bytes(bytes)) => end = Some(text(bytes)),
            _ => return None,
        }
    }
    let target = ["version", "create", "mod", "value", "lease"].get(target)?;
    let sign = ["=", ">", "<", "!="].get(sign)?;
    let key = if key.is_empty() { return None } else { span(key, end) };
    Some(format!("{target} {key} {sign} {operand}"))
}

fn operation(message: &[u8]) -> Option<String> {
    let fields = fields(message)?;
    let [(number, Field::Bytes(inner))] = fields.as_slice() else { return None };
    let name = match number {
        1 => "get",
        2 => "put",
        3 => "del",
        4 => return Txn::read(inner).map(|txn| format!("txn {txn:?}")),
        _ => return None,
    };
    let (mut key, mut end) = (String::new(), None);
    for (number, value) in self::fields(inner)? {
        match (number, value) {
            (1, Field::Bytes(bytes)) => key = text(bytes),
            (2, Field::Bytes(bytes)) if name != "put" => end = Some(text(bytes)),
            _ => {}
        }
    }
    Some(format!("{name} {}", span(key, end)))
}

fn span(key: String, end: Option<String>) -> String {
    end.map_or_else(|| key.clone(), |end| format!("{key}..{end}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message; nothing if the bytes are not one.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(value)
            }
            _ => return None, // etcd's requests have no others
        };
        fields.push((tag >> 3, value));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn frame(kind: u8, flags: u8, stream: u8, body: &[u8]) -> Vec<u8> {
        let length = u8::try_from(body.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], body].concat()
    }

    fn message(body: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, 0, u8::try_from(body.len()).unwrap()], body].concat()
    }

    #[test]
    fn a_transaction_is_read() {
        // mod /a = 7; put /a 1; get /b../c
        let compare = [&[0x10, 2][..], &field(3, b"/a"), &[6 << 3, 7]].concat();
        let put = field(2, &[field(1, b"/a"), field(2, b"1")].concat());
        let get = field(1, &[field(1, b"/b"), field(2, b"/c"), vec![7 << 3, 1]].concat());
        let bytes = [field(1, &compare), field(2, &put), field(3, &get)].concat();
        let txn = Txn::read(&bytes).unwrap();
        assert_eq!(txn.compares, ["mod /a = 7"]);
        assert_eq!(txn.then, ["put /a"]);
        assert_eq!(txn.otherwise, ["get /b../c"]);
        assert!(txn.is_commit());
        let read = Txn::read(&field(2, &get)).unwrap();
        assert!(!read.is_commit());
    }

    #[test]
    fn a_range_and_a_put_are_no_transactions() {
        let range = [field(1, b"/leasehold/v1/"), field(2, b"/leasehold/v10")].concat();
        assert_eq!(Txn::read(&range), None);
        let put = [field(1, b"/leasehold/v1/meta"), field(2, br#"{"v":1}"#)].concat();
        assert_eq!(Txn::read(&put), None);
        assert_eq!(Txn::read(b""), None);
    }

    #[test]
    fn frames_come_out_whole_however_they_came_in() {
        let message = message(&field(2, &field(3, &field(1, b"/a"))));
        let (one, other) = message.split_at(3);
        let padded = [&[2], other, &[0, 0]].concat();
        let bytes =
            [PREFACE, &frame(DATA, 0, 5, one), &frame(HEADERS, 0, 7, b"x"), &frame(DATA, PADDED, 5, &padded)];
        let bytes = bytes.concat();
        for size in 1..bytes.len() {
            let (mut cutter, mut messages) = (Cutter::default(), Messages::default());
            let pieces: Vec<_> = bytes.chunks(size).flat_map(|chunk| cutter.push(chunk)).collect();
            let whole: Vec<u8> = pieces.iter().flat_map(Piece::bytes).copied().collect();
            assert_eq!(whole, bytes);
            let frames = pieces.iter().filter_map(|piece| match piece {
                Piece::Frame(frame) => Some(frame),
                Piece::Opaque(_) => None,
            });
            let read: Vec<_> = frames.filter_map(|frame| messages.push(frame)).collect();
            assert_eq!(read.len(), 1);
            assert_eq!(read[0].then, ["del /a"]);
        }
    }
}
