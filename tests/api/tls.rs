//! The API over TLS, trusted by one file.

use bytes::Bytes;
use hub::client::exec::Event;
use hub::client::{Client, ClientError};
use hub_server::api::channel::LastWord;

use crate::world::{World, shell};

#[tokio::test]
async fn https_is_for_those_who_know_the_certificate() {
    let mut world = World::with(|dir, config| {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names.clone()).unwrap();
        let (certificate, key) = (dir.path().join("api.pem"), dir.path().join("api.key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let other = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(dir.path().join("other.pem"), other.cert.pem()).unwrap();
        config.api_tls = Some((certificate, key));
    })
    .await;
    world.join().await;
    let url = format!("https://127.0.0.1:{}", world.api().port());
    let client = |ca: Option<&str>| {
        Client::new(
            &url,
            &world.token,
            ca.map(|name| world.path(name)).as_deref(),
        )
    };
    assert!(matches!(client(None), Err(ClientError::NoCa)));
    assert!(matches!(
        client(Some("missing.pem")),
        Err(ClientError::Ca { .. })
    ));
    let stranger = client(Some("other.pem"))
        .unwrap()
        .status()
        .await
        .unwrap_err();
    assert!(
        matches!(stranger, ClientError::Connect { .. }),
        "{stranger}"
    );

    let client = client(Some("api.pem")).unwrap();
    assert_eq!(client.status().await.unwrap().connected, 1);
    let exec = client.exec(&shell("cat; exit 5", true)).await.unwrap();
    let (mut input, mut output) = exec.split();
    input.send(b"through TLS").await.unwrap();
    input.finish().await.unwrap();
    assert_eq!(
        output.next().await,
        Event::Stdout(Bytes::from_static(b"through TLS"))
    );
    let word = loop {
        if let Event::Ended(word) = output.next().await {
            break word;
        }
    };
    assert_eq!(word, LastWord::Exited(5));

    let clear = Client::new(&url.replace("https", "http"), &world.token, None).unwrap();
    assert!(clear.status().await.is_err());
    world.stop().await;
}
