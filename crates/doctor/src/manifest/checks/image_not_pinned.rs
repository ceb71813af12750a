//! Nodes that pull the image at different times may get different images, with different PyTorch.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "image-not-pinned",
    sees: "WARN: `:latest` or no tag, where more runs than `sleep` and its like",
    fails: "image-not-pinned.yaml",
    passes: "good-job-static.yaml",
    find: Find::Container(|pods, container| find(pods, container).into_iter().collect()),
};

fn find(pods: &Pods, container: &Container) -> Option<Check> {
    let image =
        container.value.get("image").and_then(Value::as_str).filter(|image| !is_placeholder(image))?;
    // An init container prepares something, and has no PyTorch.
    if container.only_waits() || container.field.starts_with("init") && !container.is_sidecar() {
        return None;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    let pinned = image.contains('@') || name.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    (!pinned).then(|| {
        let evidence = format!("`{image}` may be another image on each node, with another PyTorch");
        Check::warn(evidence, "name a version, or better a digest").at(pods.at(&container.at("image")))
    })
}
