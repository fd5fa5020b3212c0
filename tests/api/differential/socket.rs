//! The Docker socket through the hub: whatever the daemon says, byte for byte.

use std::future::pending;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::{Side, Way, shown, socket, with};
use crate::world::NODE;

impl Side<'_> {
    /// What the daemon answers on a connection of its own.
    async fn get(&self, path: &str) -> (u16, String) {
        let request = Request::get(path)
            .header(header::HOST, "docker")
            .body(Full::new(Bytes::new()))
            .unwrap();
        let (near, far) = tokio::io::duplex(64 * 1024);
        let carried = async {
            match self.way {
                Way::Hub => {
                    let tunnel = self.rig.client.docker(NODE).await.unwrap();
                    let (read, write) = tokio::io::split(far);
                    tunnel.carry(read, write, pending()).await.unwrap();
                }
                Way::Daemon => {
                    let (mut far, mut daemon) = (far, UnixStream::connect(socket()).await.unwrap());
                    tokio::io::copy_bidirectional(&mut far, &mut daemon)
                        .await
                        .unwrap();
                }
            }
        };
        let asked = async {
            let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(near))
                .await
                .unwrap();
            let driver = tokio::spawn(driver);
            let answer = sender.send_request(request).await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            drop(sender);
            driver.await.unwrap().unwrap();
            (status, shown(&body))
        };
        tokio::join!(carried, asked).1
    }
}

#[tokio::test]
#[ignore = "needs a Docker daemon"]
async fn docker_the_socket_is_the_same() {
    with(async |rig| {
        let maker = rig.maker();
        let id = maker.run(maker.spec("says", &["seq", "30000"])).await;
        maker.over(&id).await;
        rig.script(async |side| {
            for path in [
                "/_ping",
                "/version",
                &format!("/v1.41/images/{}/json", rig.image),
                &format!("/containers/{id}/json"),
                &format!("/containers/{id}/logs?stdout=1&timestamps=1"),
                &format!("/containers/{id}/archive?path=/bin/busybox"),
                "/containers/hub-no-such/json",
                "/no/such/path",
            ] {
                side.same(path, side.get(path).await);
            }
        })
        .await;
    })
    .await;
}
