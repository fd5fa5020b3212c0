//! `hub-agent`: reads its settings, sets up what the agent stands on, runs it.

use std::process::ExitCode;

use hub::settings::{self, AgentSettings};
use hub_agent::agent::AgentError;
use hub_agent::runtime::process::gate;
use hub_agent::uplink::UplinkError;

/// The hub refused this node for good: starting again is of no use (`EX_NOPERM` of sysexits.h).
const REFUSED: u8 = 77;

fn main() -> ExitCode {
    gate::enter();
    serve()
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            match error.downcast_ref::<AgentError>() {
                Some(AgentError::Uplink(UplinkError::Refused(_))) => ExitCode::from(REFUSED),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let settings = AgentSettings::load();
    let filter = settings
        .as_ref()
        .ok()
        .and_then(|settings| settings.log.as_deref());
    settings::start_logging(filter)?;
    settings::raise_descriptor_limit();
    let (config, parts) = settings?.build().await?;
    let (stop, stopping) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        if let Err(error) = settings::told_to_stop().await {
            tracing::error!("{error:#}");
        }
        let _ = stop.send(true);
    });
    Ok(hub_agent::agent::run(config, parts, stopping).await?)
}
