//! All of httpbin: methods, redirects, cookies, authentication, encodings, ranges, streams.

use serde_json::Value;

use crate::curl::{Response, differences, requests};
use crate::house::{House, Running, free_port, python};

/// Requests, in curl's words.
const REQUESTS: &str = "
    URL/get
    URL/get?a=1&b=%20%2F&c=%C3%A4&a=2
    URL/get -H X-Custom:1 -H X-custom:2 -A agent/1
    -I URL/get
    -X DELETE URL/delete
    -X DELETE URL/delete -d x=1
    -X PATCH URL/patch -d x=1
    -X PUT URL/put -d x=1
    -X PUT URL/put -H Content-Length:0
    -X POST URL/post -H Content-Length:0
    -X OPTIONS URL/get
    URL/post -d a=1&b=2
    URL/post -F file=@/etc/hostname -F x=y
    URL/post -H Content-Type:application/json -d {\"a\":[1,2]}
    URL/post -H Transfer-Encoding:chunked -d chunked
    URL/anything/a/b%2Fc/../d//e
    URL/anything/%41%7e?x=%2f
    URL/anything/;a=b/c,d
    -X FOO URL/anything
    URL/status/200
    URL/status/201
    URL/status/204
    URL/status/205
    URL/status/304
    URL/status/400
    URL/status/404
    URL/status/418
    URL/status/429
    URL/status/500
    URL/status/503
    -I URL/status/404
    URL/redirect/1
    -L URL/redirect/3
    -L URL/relative-redirect/3
    -L URL/absolute-redirect/2
    URL/redirect-to?url=/get&status_code=307
    -L -X POST -d a=1 URL/redirect-to?url=/post&status_code=307
    URL/cookies -b a=1;b=2
    URL/cookies/set?a=1&b=2
    URL/cookies/set/a/1
    URL/cookies/delete?a
    -u user:pass URL/basic-auth/user/pass
    -u user:wrong URL/basic-auth/user/pass
    URL/basic-auth/user/pass
    -u user:pass URL/hidden-basic-auth/user/pass
    -H Authorization:Bearer-x URL/bearer
    -H Authorization:Bearer~x URL/bearer
    URL/gzip --compressed
    URL/deflate --compressed
    URL/brotli --compressed
    URL/encoding/utf8
    URL/html
    URL/xml
    URL/json
    URL/robots.txt
    URL/deny
    URL/image/png
    URL/image/jpeg
    URL/image/svg
    URL/image -H Accept:image/webp
    URL/image -H Accept:text/plain
    URL/bytes/0?seed=1
    URL/bytes/1?seed=1
    URL/bytes/100000?seed=7
    -I URL/bytes/1000?seed=7
    URL/stream-bytes/100000?seed=7&chunk_size=777
    URL/stream/20
    -I URL/stream/20
    URL/range/26
    URL/range/26 -H Range:bytes=0-0
    URL/range/26 -H Range:bytes=5-
    URL/range/26 -H Range:bytes=-5
    URL/range/26 -H Range:bytes=100-200
    URL/range/5000?chunk_size=100 -H Range:bytes=1000-3999
    URL/drip?duration=0.4&numbytes=5&code=200&delay=0
    URL/delay/1
    URL/cache
    URL/cache -H If-None-Match:x
    URL/cache -H If-Modified-Since:Mon,~01~Jan~2024~00:00:00~GMT
    URL/cache/60
    URL/etag/abc
    URL/etag/abc -H If-None-Match:abc
    URL/etag/abc -H If-Match:other
    URL/response-headers?X-A=1&X-A=2&Content-Type=text/plain
    URL/links/3/0
    URL/base64/aGVsbG8=
    URL/user-agent
    URL/headers -H Accept-Language:de -H DNT:1
    URL/headers -H Connection:close,X-Gone -H X-Gone:1
    URL/ip
    URL/forms/post
    URL/no-such-page
    URL/
";

/// What targets see of the hub, and of the connection to them: docs/expose.md lists it.
const ADDED: [&str; 8] = [
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-Ip",
    "Connection",
    "Transfer-Encoding",
    "X-Gone",
];

/// Takes out what an answer says of the way that its request took, and what is made anew each time.
fn alike(response: &mut Response) {
    let told = |line: &str| -> Option<String> {
        let mut told: Value = serde_json::from_str(line).ok()?;
        let headers = told.get_mut("headers")?.as_object_mut()?;
        headers.retain(|name, _| !ADDED.contains(&&name[..]));
        if let Some(Value::String(kind)) = headers.get_mut("Content-Type") {
            kind.truncate(kind.find("boundary=").unwrap_or(kind.len()));
        }
        Some(told.to_string())
    };
    let body = std::str::from_utf8(&response.body).unwrap_or_default();
    let lines: Option<Vec<String>> = match told(body) {
        Some(told) => Some(vec![told]),
        None => body.lines().map(told).collect(),
    };
    if let Some(lines) = lines.filter(|lines| !lines.is_empty()) {
        response.body = lines.join("\n").into_bytes();
    }
    // An answer that tells the headers has another length then.
    let json = ("content-type".to_owned(), "application/json".to_owned());
    if response.headers.contains(&json) {
        (response.headers).retain(|(name, _)| name != "content-length");
    }
    for (name, value) in &mut response.headers {
        // Of `/cache` both are of the moment.
        if name == "last-modified" || name == "etag" && value.len() > 8 {
            value.clear();
        }
    }
}

#[test]
#[ignore = "needs httpbin"]
fn python_httpbin_answers_the_same_through_the_hub() {
    let port = free_port();
    let mut command = python();
    command
        .args([
            "-m",
            "gunicorn",
            "--worker-class",
            "gthread",
            "--threads",
            "8",
        ])
        .args(["--bind", &format!("127.0.0.1:{port}"), "httpbin:app"]);
    let target = Running::start(command, port);
    let house = House::new();
    let exposed = house.expose("bin", target.port, &[]);
    // The same name for both, since pages repeat it.
    let direct = exposed.host.rsplit_once(':').unwrap().0;
    let direct = format!("{direct}:{}", target.port);
    let mut found = Vec::new();
    for request in requests(REQUESTS) {
        let differs = differences(&direct, &exposed.host, &request, |response| {
            alike(response);
            // Pages that repeat their own address differ in the port, which is what it is.
            let port = exposed.host.rsplit_once(':').unwrap().1;
            let text =
                String::from_utf8_lossy(&response.body).replace(port, &target.port.to_string());
            if std::str::from_utf8(&response.body).is_ok() {
                response.body = text.into_bytes();
            }
            for (name, value) in &mut response.headers {
                if name == "location" {
                    *value = value.replace(port, &target.port.to_string());
                }
            }
        });
        found.extend(differs);
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
