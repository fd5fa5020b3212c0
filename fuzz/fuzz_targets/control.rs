//! Frames of the control stream. What can be read is written and read again unchanged.
#![no_main]

use bytes::Bytes;
use hub_protocol::frame::Decoder;
use hub_protocol::session::Control;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|wire: &[u8]| {
    let mut decoder = Decoder::default();
    decoder.push(Bytes::copy_from_slice(wire));
    while let Ok(Some(frame)) = decoder.control() {
        let Ok(control) = Control::decode(&frame) else {
            continue;
        };
        let mut again = Decoder::default();
        again.push(control.encode());
        let frame = again.control().expect("well-formed").expect("whole");
        assert!(again.is_empty());
        assert_eq!(Control::decode(&frame).as_ref(), Ok(&control));
    }
});
