//! `hub-server`: reads its settings, starts the hub, says where it is, stops it in good order.

use std::process::ExitCode;

use anyhow::Context as _;
use hub::local::Local;
use hub::settings::{self, ServerSettings};
use hub_agent::runtime::process::gate;
use hub_server::{Parts, Server, files};

fn main() -> ExitCode {
    // For the commands of its own machine.
    gate::enter();
    serve()
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let settings = ServerSettings::load();
    let filter = settings
        .as_ref()
        .ok()
        .and_then(|settings| settings.log.as_deref());
    settings::start_logging(filter)?;
    settings::raise_descriptor_limit();
    let settings = settings?;
    let ready_file = settings.ready_file.clone();
    let local = settings.local()?;
    let config = settings.configuration()?;
    let parts = Parts::system(&config).await?;
    let data_dir = config.data_dir.clone();
    let server = Server::start(config, parts).await?;
    let local = match local {
        Some(local) => Some(Local::start(&server, local, &data_dir).await?),
        None => None,
    };
    let bound = server.bound();
    if let Some(path) = ready_file {
        // Whoever waits for the file finds it whole or not at all.
        files::replace(&path, 0o644, &serde_json::to_vec_pretty(bound)?)
            .with_context(|| format!("cannot write the ready file {}", path.display()))?;
    }
    tracing::info!(
        agents = %bound.agents,
        enrollment = %bound.enrollment,
        api = bound.api.map(tracing::field::display),
        browsers = bound.proxy.map(tracing::field::display),
        ca = %bound.ca,
        "the hub is up"
    );
    settings::told_to_stop().await?;
    tracing::info!("stopping");
    server.stop().await;
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(())
}
