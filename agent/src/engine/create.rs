//! Creating a container: the two steps in which it is made, of a specification in the daemon's words.
//!
//! ```text
//! container_prepare   check, pull the image if need be      can be given up at any point
//! container_create    the one request that makes it         must be seen through
//! container_undo      removes what was made for nobody
//! ```
//!
//! The daemon makes a container though nobody waits for it any more, so whoever asked has to wait
//! for its id, to remove it if need be.

mod specification;

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder,
};
use hub_protocol::kind::call::container::{Create, Created};
use hub_protocol::kind::call::image;
use hub_protocol::kind::{Failure, FailureCode};

pub(super) use self::specification::signed;
use self::specification::{body, invalid};
use super::error::{self, failure};
use super::{Calls, find, names};

/// A container that can be created: its specification is sound, its image is there.
#[derive(Clone)]
pub struct Prepared {
    name: String,
    body: ContainerCreateBody,
}

/// Variables and arguments may be secret.
impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Calls<'_> {
    /// Checks a specification and sees to its image.
    pub async fn container_prepare(&self, call: Create) -> Result<Prepared, Failure> {
        let mut body = body(&call)?;
        let docker = self.engine.docker();
        // A name that is taken is better known before a long pull.
        if find(docker.inspect_container(&call.name, None::<InspectContainerOptions>))
            .await?
            .is_some()
        {
            let taken = format!("there is a container {} already", call.name);
            return Err(Failure::new(FailureCode::CONFLICT, taken));
        }
        let there = match names::image(&call.image) {
            Some(name) if !call.force_pull => find(docker.inspect_image(name)).await?,
            _ => None,
        };
        let image = if let Some(image) = there {
            image
        } else {
            let pull = image::Pull {
                image: call.image.clone(),
                platform: None,
                registry: call.registry,
            };
            self.pull(&pull).await?
        };
        // No arguments at all is what Docker takes for the image's own, unless there is an
        // entrypoint.
        if body.cmd.as_ref().is_some_and(Vec::is_empty) && body.entrypoint.is_none() {
            body.entrypoint = image.config.and_then(|config| config.entrypoint);
        }
        let nothing = |list: &Option<Vec<String>>| list.as_ref().is_some_and(Vec::is_empty);
        if nothing(&body.cmd) && body.entrypoint.as_ref().is_none_or(Vec::is_empty) {
            return Err(invalid(
                "command",
                "it is empty, and there is no entrypoint",
            ));
        }
        Ok(Prepared {
            name: call.name,
            body,
        })
    }

    /// Creates a container. It is made even if nobody waits for this any more: to be seen through,
    /// and undone by [`container_undo`](Self::container_undo) where nobody wants it.
    pub async fn container_create(&self, prepared: Prepared) -> Result<Created, Failure> {
        let Prepared { name, body } = prepared;
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let created = self
            .engine
            .patient()
            .create_container(Some(options), body)
            .await
            .map_err(|error| failure(&error))?;
        Ok(Created {
            id: created.id,
            warnings: created.warnings,
        })
    }

    /// Removes a container that was created for nobody, with its volumes.
    pub async fn container_undo(&self, id: &str) -> Result<(), Failure> {
        let options = RemoveContainerOptionsBuilder::new()
            .force(true)
            .v(true)
            .build();
        match self
            .engine
            .docker()
            .remove_container(id, Some(options))
            .await
        {
            Err(error) if error::status(&error) != Some(404) => Err(failure(&error)),
            _ => Ok(()),
        }
    }
}
