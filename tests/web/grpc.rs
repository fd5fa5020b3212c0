//! gRPC's own client and server: unary calls, streams both ways, errors in trailers.

use crate::house::{House, Running, asset, python};
use crate::programs::{stderr, stdout};

/// What the client says of the service at `address`, under the name `authority`.
fn transcript(address: &str, authority: &str) -> String {
    let mut client = python();
    let output = client
        .args([&asset("grpc_client.py"), address, authority])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
#[ignore = "needs grpcio"]
fn python_grpc_works_the_same_through_the_hub() {
    let mut server = python();
    server.arg(asset("grpc_server.py"));
    let server = Running::start_and_ask(server);
    let house = House::new();
    let exposed = house.expose("rpc", server.port, &["--http2"]);
    let direct = transcript(&format!("127.0.0.1:{}", server.port), &exposed.host);
    assert!(direct.contains("FAILED_PRECONDITION"), "{direct}");
    let through = transcript(house.hub.address("proxy"), &exposed.host);
    assert_eq!(direct, through);
}
