//! A field at a wrong place has no effect, or the API server rejects the object, as `kubectl` asks it to.

use super::super::schemas;
use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "unknown-field",
    sees: "FAIL: `backoffLimit` in the spec of a PyTorchJob, `rdzvEndpoint` in its `elasticPolicy`, \
           `volumeMounts` in a TrainJob's `trainer`, `subdomain` in the spec of a Job, `env` beside \
           `containers` or below `imagePullSecrets`. WARN: `replicas` in a RayCluster's `headGroupSpec`, \
           which the operator has no more",
    examples: ["unknown-field.yaml", "good-indexed-job.yaml"],
    find: Find::Files(|manifests| schemas::rejected(manifests, true)),
};
