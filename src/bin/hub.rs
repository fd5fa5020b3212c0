//! `hub`: the operator's command line.

fn main() {
    let code = hub::cli::run(std::env::args_os());
    // Ends threads that wait for a pipe or a terminal, too.
    std::process::exit(code);
}
