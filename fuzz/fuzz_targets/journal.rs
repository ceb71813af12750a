//! Arbitrary bytes as the rows of a commit, and as segments. Nothing panics, a row that was read is written
//! back unchanged, and only bytes that count for nothing are cut from the end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rallypoint_journal::segment::{COMMIT, End, Header, Position, seal};
use rallypoint_journal::{Recovery, rows};

fuzz_target!(|data: &[u8]| {
    let mut again = Vec::new();
    for row in rows(data).map_while(Result::ok).flatten() {
        again.clear();
        row.encode(&mut again);
        assert_eq!(rows(&again).collect::<Vec<_>>(), [Ok(Some(row))]);
    }
    let _ = Recovery::default().read(1, &mut { data }, None);

    // The fuzzer makes no valid checksum. So try the bytes as a segment's contents, and also inside a sealed
    // commit.
    let header = Header { number: 1, anew: false, follows: Some(End::default()) }.encode();
    let mut commit = vec![0; COMMIT];
    commit.extend_from_slice(data);
    let at = header.len() as u32;
    if seal(&mut commit, Position { segment: 1, at }, at).is_none() {
        return;
    }
    let sealed = [&header[..], &commit].concat();
    let mut recovery = Recovery::default();
    if recovery.read(1, &mut &sealed[..], None).is_ok() {
        let whole = recovery.finish().expect("the first segment is there");
        assert_eq!((whole.commits, whole.torn.len()), (1, 0));
        let torn = [&sealed[..], data].concat();
        let mut recovery = Recovery::default();
        if recovery.read(1, &mut &torn[..], None).is_ok() {
            assert_eq!(recovery.finish().map(|read| read.image), Ok(whole.image));
        }
    }
});
