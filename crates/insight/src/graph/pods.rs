//! What is known of the pods behind those that have not come: what they announced at the gate, and what their relays did since.

use std::sync::Arc;

use super::processes::Graph;
use crate::expect::Plan;
use crate::presence::Sighting;
use crate::run::{Meeting, TrackedRun};
use rallypoint_api::RunKind;

impl Graph<'_> {
    fn plan(&self, run: &TrackedRun) -> Arc<Plan> {
        self.plans.of(&run.key().name(self.store.owner.as_ref()))
    }

    /// The pod with this node rank, if it announced itself. Other backends than the static one give their nodes other ranks.
    pub(super) fn announced_node(&self, run: &TrackedRun, rank: u32) -> Option<Sighting> {
        if run.kind() == RunKind::Static { self.announced(&self.plan(run), rank) } else { None }
    }

    /// The pod of a rank, if it announced itself. It has only this one: else it is not known which ranks it has.
    pub(super) fn announced_rank(&self, run: &TrackedRun, of: &Meeting, rank: u32) -> Option<Sighting> {
        let plan = self.plan(run);
        let is_its_own = !run.has_agents() && of.size.is_some_and(|ranks| plan.is_one_rank_each(ranks));
        if is_its_own { self.announced(&plan, rank) } else { None }
    }

    fn announced(&self, plan: &Plan, rank: u32) -> Option<Sighting> {
        let (pod, seen) = plan.announced(rank)?;
        let since = self.links.since_announced(plan, pod, seen, self.now);
        Some(Sighting::behind(format!("pod {pod}"), since))
    }
}
