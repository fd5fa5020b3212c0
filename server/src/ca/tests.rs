#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use hub_ledger::{Join, JoinTokenHash, NewToken};
use hub_quic::tls::spki_fingerprint;
use rcgen::{CustomExtension, SigningKey as _};
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{ServerName, UnixTime};
use x509_parser::extensions::GeneralName;

use super::*;
use crate::store::Execution;

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_123);
const DEPLOYMENT: Deployment = Deployment::from_bytes([0xd0; 16]);
const NODE: NodeId = NodeId::from_bytes([0x0d; 16]);
const SERIAL: Serial = Serial::from_random([0xff; 16]);
const DAY: Duration = Duration::from_secs(86_400);

async fn store() -> Store {
    Store::in_memory(Execution::Inline, DEPLOYMENT)
        .await
        .unwrap()
}

fn secret() -> HubSecret {
    HubSecret::from_bytes([5; 32])
}

async fn load(store: &Store) -> Result<Ca, CaError> {
    Ca::load_or_create(store, &secret(), &CaOptions::default(), NOW).await
}

fn request(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default()
        .serialize_request(key)
        .unwrap()
        .der()
        .to_vec()
}

fn parse<'a>(der: &'a CertificateDer<'static>) -> X509Certificate<'a> {
    X509Certificate::from_der(der).unwrap().1
}

fn at(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()))
}

fn roots(ca: &Ca) -> std::sync::Arc<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate_der().clone()).unwrap();
    roots.into()
}

/// What TLS says of this certificate as that of a server called `name`.
fn as_server(ca: &Ca, chain: &[CertificateDer<'static>], name: &str) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    rustls::client::WebPkiServerVerifier::builder_with_provider(
        roots(ca),
        hub_quic::tls::provider(),
    )
    .build()
    .unwrap()
    .verify_server_cert(&chain[0], &chain[1..], &name, &[], at(NOW))
    .map(|_| ())
}

/// What TLS says of this certificate as that of a client.
fn as_client(ca: &Ca, der: &CertificateDer<'static>, now: Timestamp) -> Result<(), rustls::Error> {
    rustls::server::WebPkiClientVerifier::builder_with_provider(
        roots(ca),
        hub_quic::tls::provider(),
    )
    .build()
    .unwrap()
    .verify_client_cert(der, &[], at(now))
    .map(|_| ())
}

#[tokio::test]
async fn is_made_once_and_found_again() {
    let store = store().await;
    let made = load(&store).await.unwrap();
    let found = load(&store).await.unwrap();
    assert_eq!(made.certificate_der(), found.certificate_der());
    assert_eq!(made.fingerprint(), found.fingerprint());
    assert_eq!(
        made.fingerprint(),
        spki_fingerprint(made.certificate_der()).unwrap()
    );
    let parsed = parse(made.certificate_der());
    assert!(parsed.is_ca());
    assert_eq!(
        parsed.subject().to_string(),
        format!("CN=Hub CA of {DEPLOYMENT}")
    );
    assert_eq!(parsed.subject(), parsed.issuer());
    let years = made.not_after().since(NOW).as_secs_f64() / (365.25 * 86_400.0);
    assert!((years - 10.0).abs() < 0.01, "{years} years");
    assert!(made.certificate_pem().lines().all(|line| line.len() <= 64));
    let from_pem = CertificateDer::from_pem_slice(made.certificate_pem().as_bytes()).unwrap();
    assert_eq!(&from_pem, made.certificate_der());
    assert!(!format!("{made:?}").contains("key"), "{made:?}");
}

#[tokio::test]
async fn of_two_hubs_that_race_both_go_on_with_one() {
    let store = store().await;
    let mint = || mint(&secret(), DEPLOYMENT, SignatureLength::Any, NOW).unwrap();
    let (one, two) = (mint(), mint());
    assert_ne!(one, two);
    let winner = store.put_ca_if_absent(one.clone()).await.unwrap();
    let loser = store.put_ca_if_absent(two).await.unwrap();
    assert_eq!((&winner, &loser), (&one, &one));
    assert_eq!(
        load(&store).await.unwrap().certificate_der()[..],
        one.certificate
    );
}

/// Hubs of one data directory, each with a connection of its own, started at the same time.
#[tokio::test]
async fn of_many_hubs_that_start_at_once_all_have_one_ca() {
    let directory = tempfile::tempdir().unwrap();
    let options = CaOptions {
        mirror: Some(directory.path().join("ca.pem")),
        ..CaOptions::default()
    };
    let hubs = (1..=6).map(|byte| {
        let (path, options) = (directory.path().join("hub.db"), options.clone());
        tokio::spawn(async move {
            let fresh = Deployment::from_bytes([byte; 16]);
            let store = Store::open(path, Execution::Thread, fresh).await.unwrap();
            let ca = Ca::load_or_create(&store, &secret(), &options, NOW).await;
            ca.unwrap().fingerprint()
        })
    });
    let mut fingerprints = std::collections::BTreeSet::new();
    for hub in hubs.collect::<Vec<_>>() {
        fingerprints.insert(hub.await.unwrap());
    }
    assert_eq!(fingerprints.len(), 1);
}

#[tokio::test]
async fn another_secret_is_refused_and_nothing_is_made_anew() {
    let store = store().await;
    load(&store).await.unwrap();
    let before = store.ca().await.unwrap();
    let other = HubSecret::from_bytes([6; 32]);
    let error = Ca::load_or_create(&store, &other, &CaOptions::default(), NOW)
        .await
        .unwrap_err();
    assert!(matches!(error, CaError::WrongSecret), "{error:?}");
    assert_eq!(store.ca().await.unwrap(), before);
}

#[tokio::test]
async fn a_record_that_does_not_fit_together_is_refused() {
    let mint = || mint(&secret(), DEPLOYMENT, SignatureLength::Any, NOW).unwrap();
    let opened = |record| Ca::open(record, &secret(), DEPLOYMENT, SignatureLength::Any, NOW);
    let (one, two) = (mint(), mint());

    // Another's key, sealed for that other certificate: it does not even open.
    let mixed = CaRecord {
        sealed_key: two.sealed_key.clone(),
        ..one.clone()
    };
    assert!(matches!(opened(mixed), Err(CaError::WrongSecret)));

    // Another's key, sealed for this certificate by somebody who knows the secret.
    let fingerprint = |record: &CaRecord| {
        spki_fingerprint(&CertificateDer::from(record.certificate.clone())).unwrap()
    };
    let key = seal::unseal(&two.sealed_key, &secret(), DEPLOYMENT, fingerprint(&two)).unwrap();
    let sealed_key = seal::seal(&key, &secret(), DEPLOYMENT, fingerprint(&one)).unwrap();
    let mixed = CaRecord {
        sealed_key,
        ..one.clone()
    };
    assert!(matches!(opened(mixed), Err(CaError::Mismatch)));

    let no_key = seal::seal(b"no key", &secret(), DEPLOYMENT, fingerprint(&one)).unwrap();
    let no_key = CaRecord {
        sealed_key: no_key,
        ..one.clone()
    };
    assert!(matches!(opened(no_key), Err(CaError::Mismatch)));

    let empty = CaRecord {
        certificate: vec![],
        ..one.clone()
    };
    assert!(matches!(opened(empty), Err(CaError::BadCertificate(_))));
    let empty = CaRecord {
        sealed_key: vec![],
        ..one.clone()
    };
    assert!(matches!(opened(empty), Err(CaError::WrongSecret)));

    let mut damaged = one.clone();
    *damaged.certificate.last_mut().unwrap() ^= 1;
    assert!(matches!(opened(damaged), Err(CaError::BadCertificate(_))));

    // A certificate of another kind, with its own key.
    let ca = opened(one).unwrap();
    let hub = ca.sign_hub(&[], NOW).unwrap();
    let leaf = CaRecord {
        certificate: hub.chain[0].to_vec(),
        sealed_key: two.sealed_key,
    };
    assert!(matches!(opened(leaf), Err(CaError::BadCertificate(_))));
}

#[tokio::test]
async fn outside_its_time_it_is_refused() {
    let store = store().await;
    let ca = load(&store).await.unwrap();
    let load_at = |now| {
        let store = store.clone();
        async move { Ca::load_or_create(&store, &secret(), &CaOptions::default(), now).await }
    };
    assert!(load_at(ca.not_after()).await.is_ok());
    let after = ca.not_after().saturating_add(DAY);
    assert!(matches!(
        load_at(after).await,
        Err(CaError::NotValidNow { .. })
    ));
    assert!(matches!(
        load_at(NOW.saturating_sub(DAY)).await,
        Err(CaError::NotValidNow { .. })
    ));
    let key = request(&KeyPair::generate().unwrap());
    let late = ca.sign_node(&key, NODE, SERIAL, after, DAY);
    assert!(matches!(late, Err(SignError::CaNotValidNow { .. })));
    assert!(matches!(
        ca.sign_hub(&[], after),
        Err(SignError::CaNotValidNow { .. })
    ));
}

#[tokio::test]
async fn the_copy_is_written_checked_and_believed() {
    let directory = tempfile::tempdir().unwrap();
    let mirror = directory.path().join("ca.pem");
    let options = CaOptions {
        mirror: Some(mirror.clone()),
        ..CaOptions::default()
    };
    let load = async |store: &Store| Ca::load_or_create(store, &secret(), &options, NOW).await;
    let first = store().await;
    let ca = load(&first).await.unwrap();
    assert_eq!(fs::read_to_string(&mirror).unwrap(), ca.certificate_pem());
    assert_eq!(
        fs::metadata(&mirror).unwrap().permissions().mode() & 0o777,
        0o644
    );
    load(&first).await.unwrap();

    // The ledger is lost, the copy is left: nodes may still trust that CA.
    let lost = store().await;
    let error = load(&lost).await.unwrap_err();
    assert!(
        matches!(&error, CaError::HalfPresent(left) if left.contains("ca.pem")),
        "{error}"
    );
    assert_eq!(lost.ca().await.unwrap(), None);

    // The copy is lost: it is written again.
    fs::remove_file(&mirror).unwrap();
    load(&first).await.unwrap();
    assert!(mirror.exists());

    let other = store().await;
    Ca::load_or_create(&other, &secret(), &CaOptions::default(), NOW)
        .await
        .unwrap();
    assert!(matches!(load(&other).await, Err(CaError::OtherMirror(_))));
    fs::write(&mirror, "no certificate").unwrap();
    assert!(matches!(load(&first).await, Err(CaError::OtherMirror(_))));
}

#[tokio::test]
async fn a_ledger_with_nodes_and_no_ca_is_refused() {
    let store = store().await;
    let token = JoinTokenHash([7; 32]);
    store
        .create_token(token, NewToken::default(), NOW)
        .await
        .unwrap();
    let key = Fingerprint::from_digest([1; 32]);
    let join = Join {
        token,
        name: "shop".parse().unwrap(),
        key,
        new_id: NODE,
    };
    store.join(join, NOW).await.unwrap();
    let error = load(&store).await.unwrap_err();
    assert!(
        matches!(&error, CaError::HalfPresent(left) if left.contains("1 node")),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_gets_its_names_and_the_hubs_times() {
    let ca = load(&store().await).await.unwrap();
    for algorithm in [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let issued = ca
            .sign_node(&request(&key), NODE, SERIAL, NOW, NODE_VALIDITY)
            .unwrap();
        let identity = certificate::node(&issued.der).unwrap();
        assert_eq!(identity.node_id, NODE);
        assert_eq!(identity.fingerprint, issued.record.key);
        assert_eq!(identity.serial, SERIAL.as_bytes());
        let expected = ring::digest::digest(&ring::digest::SHA256, &key.subject_public_key_info());
        assert_eq!(issued.record.key.digest(), expected.as_ref());
        assert_eq!((issued.record.node, issued.record.serial), (NODE, SERIAL));
        let second = NOW.floor_to_second();
        assert_eq!(issued.record.not_before, second.saturating_sub(BACKDATED));
        assert_eq!(issued.record.not_after, second.saturating_add(30 * DAY));
        let parsed = parse(&issued.der);
        let seconds = |time: Timestamp| i64::try_from(time.as_secs()).unwrap();
        let validity = parsed.validity();
        assert_eq!(
            validity.not_before.timestamp(),
            seconds(issued.record.not_before)
        );
        assert_eq!(
            validity.not_after.timestamp(),
            seconds(issued.record.not_after)
        );
        let usage = parsed.key_usage().unwrap().unwrap().value;
        assert_eq!(usage.flags, 1, "digital signatures and nothing else");

        assert_eq!(as_client(&ca, &issued.der, NOW), Ok(()));
        let end = issued
            .record
            .not_after
            .saturating_add(Duration::from_secs(1));
        assert!(as_client(&ca, &issued.der, end).is_err());
        let as_hub = as_server(&ca, &[issued.der], &node_name(&NODE));
        assert!(as_hub.is_err(), "a node never passes for the hub");
    }
}

#[tokio::test]
async fn what_a_request_says_of_itself_is_ignored() {
    let ca = load(&store().await).await.unwrap();
    let mut params = CertificateParams::new([HUB_NAME.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, HUB_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    params.custom_extensions = vec![unknown];
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap();
    let issued = ca.sign_node(request.der(), NODE, SERIAL, NOW, DAY).unwrap();
    let parsed = parse(&issued.der);
    assert!(!parsed.is_ca());
    assert_eq!(parsed.subject().to_string(), format!("CN={NODE}"));
    let names = parsed.subject_alternative_name().unwrap().unwrap().value;
    assert_eq!(
        names.general_names,
        [GeneralName::DNSName(&node_name(&NODE))]
    );
    assert!(
        !parsed
            .extensions()
            .iter()
            .any(|extension| extension.oid.to_string().contains("99999"))
    );
    certificate::node(&issued.der).unwrap();
}

#[tokio::test]
async fn requests_that_prove_nothing_are_refused() {
    let ca = load(&store().await).await.unwrap();
    let sign = |request: &[u8]| ca.sign_node(request, NODE, SERIAL, NOW, DAY).unwrap_err();
    let good = request(&KeyPair::generate().unwrap());
    let mut forged = good.clone();
    let key_at = good
        .windows(2)
        .position(|pair| pair == [0x00, 0x04])
        .unwrap()
        + 10;
    forged[key_at] ^= 1;
    assert_eq!(sign(&forged), SignError::UnprovenKey);

    let long = [good.clone(), vec![0]].concat();
    for malformed in [
        &b""[..],
        b"\x30",
        &good[..good.len() - 1],
        &long,
        &[0x30; MAX_REQUEST + 1],
    ] {
        assert_eq!(sign(malformed), SignError::MalformedRequest);
    }
    let issued = ca.sign_node(&good, NODE, SERIAL, NOW, DAY).unwrap();
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x41;
        // Encodings around the signed part are read with some tolerance, which forges no key.
        if let Ok(damaged) = ca.sign_node(&damaged, NODE, SERIAL, NOW, DAY) {
            assert_eq!(damaged.record.key, issued.record.key, "byte {at}");
        }
    }
}

#[tokio::test]
async fn an_rsa_key_is_refused() {
    let ca = load(&store().await).await.unwrap();
    let Some(request) = openssl(&[
        "req",
        "-new",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "/dev/null",
        "-subj",
        "/CN=x",
        "-outform",
        "DER",
    ]) else {
        return;
    };
    let refused = ca.sign_node(&request, NODE, SERIAL, NOW, DAY).unwrap_err();
    assert_eq!(refused, SignError::KeyKind);
}

#[tokio::test]
async fn a_certificate_ends_with_its_ca_at_the_latest() {
    let ca = load(&store().await).await.unwrap();
    let key = request(&KeyPair::generate().unwrap());
    let issued = ca
        .sign_node(&key, NODE, SERIAL, NOW, 2 * CA_VALIDITY)
        .unwrap();
    assert_eq!(issued.record.not_after, ca.not_after());
    let late = ca.not_after().saturating_sub(DAY);
    let hub = ca.sign_hub(&[], late).unwrap();
    assert_eq!(hub.not_after, ca.not_after());
    assert_eq!(hub.renew_at, late.saturating_add(DAY / 2));
}

#[tokio::test]
async fn a_hub_proves_its_names_to_clients_and_is_no_client() {
    let ca = load(&store().await).await.unwrap();
    let names = [
        "hub.example.com",
        "192.0.2.7",
        "2001:db8::7",
        "hub.example.com",
    ];
    let hub = ca.sign_hub(&names.map(str::to_owned), NOW).unwrap();
    certificate::hub(&hub.chain[0]).unwrap();
    assert_eq!(&hub.chain[1], ca.certificate_der());
    for name in [HUB_NAME, "hub.example.com", "192.0.2.7", "2001:db8::7"] {
        assert_eq!(as_server(&ca, &hub.chain, name), Ok(()), "{name}");
    }
    assert!(as_server(&ca, &hub.chain, "other.example.com").is_err());
    assert!(
        as_client(&ca, &hub.chain[0], NOW).is_err(),
        "the hub never passes for a node"
    );
    assert_eq!(
        parse(&hub.chain[0])
            .subject_alternative_name()
            .unwrap()
            .unwrap()
            .value
            .general_names
            .len(),
        4
    );
    let day = |days| NOW.saturating_add(days * DAY);
    assert!(
        hub.renew_at > day(14) && hub.renew_at <= day(15),
        "{}",
        hub.renew_at
    );
    hub_quic::tls::Credentials::new(hub.chain, hub.key).unwrap();

    for name in [
        "",
        "a b",
        "-",
        "ä.example.com",
        "*.example.com",
        "hub.example.com:7443",
    ] {
        let refused = ca.sign_hub(&[name.to_owned()], NOW).unwrap_err();
        assert_eq!(refused, SignError::Name(name.to_owned()));
    }
    assert!(
        ca.sign_hub(&[node_name(&NODE)], NOW).is_err(),
        "a hub never has a node's name"
    );
}

#[tokio::test]
async fn a_site_proves_its_names_and_never_passes_for_the_hub() {
    let ca = load(&store().await).await.unwrap();
    let names = ["hub.example.com", "*.hub.example.com", "127.0.0.1"].map(str::to_owned);
    let site = ca.sign_site(&names, NOW).unwrap();
    for name in ["hub.example.com", "shop.hub.example.com", "127.0.0.1"] {
        assert_eq!(as_server(&ca, &site.chain, name), Ok(()), "{name}");
    }
    for name in [HUB_NAME, "a.b.hub.example.com", "example.com"] {
        assert!(as_server(&ca, &site.chain, name).is_err(), "{name}");
    }
    assert!(certificate::hub(&site.chain[0]).is_err());
    let certified = crate::tls::Certificate::certified(site.chain, site.key).unwrap();
    let algorithm = certified.key.algorithm();
    assert_eq!(
        algorithm,
        rustls::SignatureAlgorithm::ECDSA,
        "browsers know no Ed25519"
    );
    for name in ["", "*.", "*.127.0.0.1", "*.*.example.com", "a.*", HUB_NAME] {
        let refused = ca.sign_site(&[name.to_owned()], NOW).unwrap_err();
        assert_eq!(refused, SignError::Name(name.to_owned()));
    }
}

#[tokio::test]
async fn with_fixed_signatures_all_certificates_have_one_size() {
    let options = CaOptions {
        signature_length: SignatureLength::Fixed,
        ..CaOptions::default()
    };
    let mut sizes = std::collections::BTreeSet::new();
    for serial in 0..24 {
        let ca = Ca::load_or_create(&store().await, &secret(), &options, NOW)
            .await
            .unwrap();
        let key = request(&KeyPair::generate_for(&PKCS_ED25519).unwrap());
        let serial = Serial::from_random([serial * 11; 16]);
        let node = ca
            .sign_node(&key, NODE, serial, NOW, NODE_VALIDITY)
            .unwrap();
        let hub = ca.sign_hub(&["hub.example.com".to_owned()], NOW).unwrap();
        sizes.insert((
            ca.certificate_der().len(),
            node.der.len(),
            hub.chain[0].len(),
        ));
        assert_eq!(ca.issuer.key().sign(b"anything").unwrap().len(), 71);
    }
    assert_eq!(sizes.len(), 1, "{sizes:?}");
}

/// What the openssl command says, or `None` where there is none.
fn openssl(arguments: &[&str]) -> Option<Vec<u8>> {
    match Command::new("openssl").args(arguments).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "openssl {arguments:?}: {said}");
            Some(output.stdout)
        }
        Err(error) => {
            skipped(&format!("no openssl command: {error}"));
            None
        }
    }
}

#[allow(clippy::print_stderr)]
fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}

#[tokio::test]
async fn openssl_accepts_the_chains_for_their_purposes() {
    let directory = tempfile::tempdir().unwrap();
    let ca = load(&store().await).await.unwrap();
    let key = request(&KeyPair::generate().unwrap());
    let node = ca
        .sign_node(&key, NODE, SERIAL, NOW, NODE_VALIDITY)
        .unwrap();
    let hub = ca.sign_hub(&["hub.example.com".to_owned()], NOW).unwrap();
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ca_file = write("ca.pem", ca.certificate_pem());
    let node_file = write("node.pem", pem("CERTIFICATE", &node.der));
    let hub_file = write("hub.pem", pem("CERTIFICATE", &hub.chain[0]));
    let time = NOW.as_secs().to_string();
    let verify = |purpose, file: &str| {
        openssl(&[
            "verify",
            "-x509_strict",
            "-attime",
            &time,
            "-purpose",
            purpose,
            "-CAfile",
            &ca_file,
            file,
        ])
    };
    if verify("sslclient", &node_file).is_none() {
        return;
    }
    verify("sslserver", &hub_file).unwrap();
    let text = openssl(&["x509", "-in", &node_file, "-noout", "-text"]).unwrap();
    let text = String::from_utf8(text).unwrap();
    for expected in [
        "TLS Web Client Authentication",
        &format!("DNS:{}", node_name(&NODE)),
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(!text.contains("TLS Web Server Authentication"), "{text}");
}
