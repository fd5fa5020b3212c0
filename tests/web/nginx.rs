//! nginx with files: ranges, conditions, compression, redirects, long and short bodies.

use std::fmt::Write as _;
use std::process::Command;

use crate::curl::{Response, differences, requests};
use crate::house::{House, Running, free_port};

const REQUESTS: &str = "
    URL/small.txt
    -I URL/small.txt
    URL/empty.txt
    -I URL/big.bin
    URL/big.bin
    URL/big.bin -H Range:bytes=0-99
    URL/big.bin -H Range:bytes=-100
    URL/big.bin -H Range:bytes=4000000-
    URL/big.bin -H Range:bytes=0-9,100-109,5000000-5000009
    URL/big.bin -H Range:bytes=99999999-
    URL/big.bin -H Range:lines=1-2
    URL/big.bin -H If-Range:\"x\" -H Range:bytes=0-9
    URL/small.txt -H If-Modified-Since:Fri,~01~Jan~2100~00:00:00~GMT
    URL/small.txt -H If-None-Match:*
    URL/page.html -H Accept-Encoding:gzip
    URL/page.html --compressed
    URL/dir
    URL/dir/
    URL/with%20space%2Bplus.txt
    URL/%2e%2e/small.txt
    URL//small.txt
    URL/small.txt?query=1
    URL/none
    -X POST URL/small.txt -d a=b
    -X PUT URL/small.txt -d a=b
    -X PUT URL/small.txt -H Expect:100-continue -d a=b
    -X DELETE URL/small.txt
    -X OPTIONS URL/small.txt
    URL/moved
    URL/nothing
    URL/reset
    URL/early
    --http1.0 URL/small.txt
";

const CONFIG: &str = "
daemon off; worker_processes 1; error_log stderr; pid DIR/pid;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path DIR/t1; proxy_temp_path DIR/t2; fastcgi_temp_path DIR/t3;
    uwsgi_temp_path DIR/t4; scgi_temp_path DIR/t5;
    gzip on; gzip_min_length 1; gzip_types text/plain;
    types { text/html html; text/plain txt; application/octet-stream bin; }
    server {
        listen 127.0.0.1:PORT; server_name _; root DIR/www; autoindex on;
        absolute_redirect off; keepalive_timeout 65;
        location = /moved { return 302 /small.txt; }
        location = /nothing { return 204; }
        location = /reset { return 205; }
        location = /early { early_hints 1; return 200 late; }
    }
}
";

#[test]
#[ignore = "needs nginx"]
fn nginx_serves_files_the_same_through_the_hub() {
    let dir = tempfile::tempdir().unwrap();
    let www = dir.path().join("www");
    std::fs::create_dir_all(www.join("dir")).unwrap();
    std::fs::write(www.join("small.txt"), "small\n").unwrap();
    std::fs::write(www.join("empty.txt"), "").unwrap();
    std::fs::write(www.join("with space+plus.txt"), "odd name\n").unwrap();
    let big: Vec<u8> = (0..6_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    std::fs::write(www.join("big.bin"), &big).unwrap();
    let mut page = String::from("<html>");
    for n in 0..10_000 {
        write!(page, "<p>{n}</p>").unwrap();
    }
    std::fs::write(www.join("page.html"), page).unwrap();
    let port = free_port();
    let config = CONFIG
        .replace("DIR", dir.path().to_str().unwrap())
        .replace("PORT", &port.to_string())
        .replace("early_hints 1; ", "");
    std::fs::write(dir.path().join("nginx.conf"), config).unwrap();
    let mut nginx = Command::new("nginx");
    nginx
        .env("PATH", "/usr/sbin:/usr/bin:/bin")
        .arg("-p")
        .arg(dir.path())
        .arg("-c")
        .arg(dir.path().join("nginx.conf"));
    let nginx = Running::start(nginx, port);
    let house = House::new();
    let exposed = house.expose("files", nginx.port, &[]);
    let name = exposed.host.rsplit_once(':').unwrap().0;
    let direct = format!("{name}:{}", nginx.port);
    let mut found = Vec::new();
    for request in requests(REQUESTS) {
        found.extend(differences(&direct, &exposed.host, &request, same_boundary));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// nginx makes up a new boundary for each answer in several parts.
fn same_boundary(response: &mut Response) {
    let boundary = response.headers.iter().find_map(|(name, value)| {
        let boundary = value.strip_prefix("multipart/byteranges; boundary=");
        boundary
            .filter(|_| name == "content-type")
            .map(str::to_owned)
    });
    let Some(boundary) = boundary else { return };
    for (_, value) in &mut response.headers {
        *value = value.replace(&boundary, "B");
    }
    // The same length: boundaries of nginx are numbers of twenty digits.
    let at: Vec<usize> = (0..=response.body.len().saturating_sub(boundary.len()))
        .filter(|at| response.body[*at..].starts_with(boundary.as_bytes()))
        .collect();
    for at in at {
        response.body[at..at + boundary.len()].fill(b'B');
    }
}
