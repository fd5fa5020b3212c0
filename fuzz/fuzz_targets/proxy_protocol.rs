//! The reader of PROXY protocol headers: never asks for bytes behind a header, never for too many.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../server/src/proxy/proxy_protocol.rs"]
mod proxy_protocol;

use proxy_protocol::{LONGEST, Progress, read};

fuzz_target!(|bytes: &[u8]| {
    let mut taken = 0;
    loop {
        match read(&bytes[..taken]) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
            Ok(Progress::More(more)) => {
                assert!(more > 0 && taken + more <= LONGEST);
                taken += more;
                if taken > bytes.len() {
                    break;
                }
            }
            Ok(Progress::Whole(header)) => {
                // Neither an address nor TLS is told of in so little.
                assert!(taken > 19 || (header.source.is_none() && !header.secure));
                for cut in 0..taken {
                    assert!(!matches!(read(&bytes[..cut]), Ok(Progress::Whole(_))));
                }
                break;
            }
        }
    }
    // However much there is at once.
    let _ = read(bytes);
});
