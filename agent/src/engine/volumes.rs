//! Calls about volumes.

use bollard::models::{Volume as DockerVolume, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptions, RemoveVolumeOptions};
use hub_protocol::kind::call::Change;
use hub_protocol::kind::call::volume::{Ensure, List, Remove, Volume};
use hub_protocol::kind::{Failure, FailureCode};

use super::containers::sorted;
use super::error::{self, failure};
use super::{Calls, look, names};

impl Calls<'_> {
    /// Makes sure that a volume is there.
    pub async fn volume_ensure(&self, call: Ensure) -> Result<Volume, Failure> {
        if !names::is_container_name(&call.name) {
            let why = "name: a volume's name is of A-Z a-z 0-9 _ . -, and begins with a letter or \
                       a digit";
            return Err(Failure::new(FailureCode::INVALID, why));
        }
        let request = VolumeCreateRequest {
            name: Some(call.name),
            labels: Some(call.labels.into_iter().collect()),
            ..VolumeCreateRequest::default()
        };
        // The daemon gives the one that is there.
        let made = self.engine.docker().create_volume(request).await;
        made.map(volume).map_err(|error| failure(&error))
    }

    /// Lists volumes by name.
    pub async fn volume_list(&self, call: List) -> Result<Vec<Volume>, Failure> {
        let found = look(
            self.engine
                .docker()
                .list_volumes(None::<ListVolumesOptions>),
        )
        .await?;
        let prefix = call.prefix.unwrap_or_default();
        let found = found.volumes.into_iter().flatten();
        let named = found.filter(|one| one.name.starts_with(&prefix));
        let mut volumes: Vec<_> = named.map(volume).collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    /// Removes a volume.
    pub async fn volume_remove(&self, call: Remove) -> Result<Change, Failure> {
        let Some(name) = names::part(&call.name) else {
            return Ok(Change::NotFound);
        };
        let docker = self.engine.docker();
        match docker
            .remove_volume(&name, None::<RemoveVolumeOptions>)
            .await
        {
            Ok(()) => Ok(Change::Changed),
            Err(error) if error::status(&error) == Some(404) => Ok(Change::NotFound),
            Err(error) => Err(failure(&error)),
        }
    }
}

fn volume(found: DockerVolume) -> Volume {
    Volume {
        name: found.name,
        driver: found.driver,
        created: found.created_at.filter(|at| !at.is_empty()),
        labels: sorted(Some(found.labels)),
    }
}
