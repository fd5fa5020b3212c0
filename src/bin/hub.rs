//! `hub`: the operator's command line.

use hub_agent::runtime::process::gate;

fn main() {
    // For the commands of `hub demo`.
    gate::enter();
    let code = hub::cli::run(std::env::args_os());
    // Ends threads that wait for a pipe or a terminal, too.
    std::process::exit(code);
}
