//! The checks of manifests: one check, one file. The first lines of a file say why the mistake makes a job
//! hang. Its `RULE` says what the check sees, which examples fail and pass, and which function finds it
//! and says the remedy. `docs/doctor.md` and the tests are made from the rules.

mod agreement;
mod api_rejects;
mod backoff_limit;
mod broken_line;
mod c10d_restarts;
mod command_endpoint;
mod dns_policy;
mod endpoint;
mod endpoint_port;
mod flags_of_other_backend;
mod ft_host;
mod gang;
mod host_port;
mod init_waits;
mod katib_trial;
mod manifests;
mod misread_word;
mod more_processes;
mod mpi_slots;
mod network_guess;
mod network_policy_ports;
mod never_starts;
mod no_launch;
mod no_pods;
mod no_subdomain;
mod node_count;
mod node_rank;
mod not_read;
mod ordered_ready;
mod parallelism;
pub(super) mod prelude;
mod probes;
mod ray_ends;
mod ray_ports;
mod rdzv_conf_keys;
mod run_id;
mod sbatch_ignored;
mod script_ends;
mod selector_matches_none;
mod service_link;
mod shared_memory;
mod sidecar;
mod skipped;
mod sleep_as_synchronisation;
mod ssh_waits;
mod template;
mod trains_alone;
mod unknown_flag;
mod unknown_kind;
mod unset_variable;
mod world_size;
mod yaml;

use prelude::{Call, Check, Container, Manifests, Pods, Tool};

/// A check of manifests.
#[cfg_attr(not(test), expect(dead_code, reason = "docs/doctor.md and the tests are made from these fields"))]
#[derive(Debug)]
pub(crate) struct Rule {
    pub(super) id: &'static str,
    /// What it sees, for the documentation.
    pub(super) sees: &'static str,
    /// A file of `tests/data/manifests` in which it finds something, and a similar one in which it does not.
    pub(super) examples: [&'static str; 2],
    pub(super) find: Find,
}

/// The function that finds a mistake, by what it looks at.
#[derive(Debug)]
pub(crate) enum Find {
    /// Each launch by one of these launchers.
    Launch(&'static [Tool], fn(&Call<'_>) -> Option<Check>),
    /// Each launch by torchrun, also in a branch or a loop.
    Torchrun(fn(&Call<'_>) -> Option<Check>),
    /// Each container.
    Container(fn(&Pods, &Container) -> Vec<Check>),
    /// The pods of each template.
    Pods(fn(&Manifests, &Pods) -> Vec<Check>),
    /// All files together.
    Files(fn(&Manifests) -> Vec<Check>),
    /// All files, and what the checks before found.
    After(fn(&Manifests, &[Check]) -> Vec<Check>),
}

impl Rule {
    fn apply(&self, manifests: &Manifests, found: &[Check]) -> Vec<Check> {
        let checks = match self.find {
            Find::Launch(tools, find) => {
                let calls = manifests.calls().filter(|call| tools.contains(&call.launch.tool()));
                calls.filter_map(|call| find(&call)).collect()
            }
            Find::Torchrun(find) => manifests.all_calls().filter_map(|call| find(&call)).collect(),
            Find::Container(find) => {
                let of_pods = |pods: &Pods| pods.all().flat_map(|it| find(pods, it)).collect::<Vec<_>>();
                manifests.pods.iter().flat_map(of_pods).collect()
            }
            Find::Pods(find) => manifests.pods.iter().flat_map(|pods| find(manifests, pods)).collect(),
            Find::Files(find) => find(manifests),
            Find::After(find) => find(manifests, found),
        };
        checks.into_iter().map(|check| check.called(self.id)).collect()
    }
}

/// Whether two findings say the same of one object, such as of its Master and of its Workers.
fn is_same(a: &Check, b: &Check) -> bool {
    let object = |check: &Check| check.place.as_ref().map(|place| (place.file.clone(), place.object.clone()));
    (a.id, &a.evidence, &a.remedy) == (b.id, &b.evidence, &b.remedy) && object(a) == object(b)
}

/// Applies every check. What two of them find in the same words is one finding.
pub(super) fn all(manifests: &Manifests) -> Vec<Check> {
    let mut found = Vec::new();
    for rule in CHAPTERS.iter().flat_map(|(_, rules)| *rules) {
        for check in rule.apply(manifests, &found) {
            if !found.iter().any(|other| is_same(other, &check)) {
                found.push(check);
            }
        }
    }
    found
}

/// What is found however the scripts choose between their branches. A reading that launches nothing of an
/// object says nothing about it.
pub(super) fn in_all(readings: &[Manifests]) -> Vec<Check> {
    let found: Vec<Vec<Check>> = readings.iter().map(all).collect();
    let says = |reading: &Manifests, check: &Check| {
        let is_of = |pods: &Pods| {
            check
                .place
                .as_ref()
                .is_some_and(|it| (&it.file, &it.object) == (&pods.place.file, &pods.place.object))
        };
        reading.pods.iter().any(|pods| is_of(pods) && pods.train())
    };
    let mut kept: Vec<Check> = Vec::new();
    for check in found.iter().flatten() {
        let is_found = |(reading, found): (&Manifests, &Vec<Check>)| {
            found.iter().any(|other| is_same(other, check)) || !says(reading, check)
        };
        if readings.iter().zip(&found).all(is_found) && !kept.iter().any(|other| is_same(other, check)) {
            // One line says that there is no mistake.
            kept.retain(|other| check.place.is_some() || other.id != check.id);
            kept.push(check.clone());
        }
    }
    kept
}

/// Every check, in the order of `docs/doctor.md`, by the part of that page.
#[rustfmt::skip]
pub(super) const CHAPTERS: &[(&str, &[&Rule])] = &[
    ("do the pods find each other", &[
        &command_endpoint::RULE, &endpoint::RULE,
        &endpoint_port::RULE, &selector_matches_none::RULE, &service_link::RULE, &no_subdomain::RULE,
        &init_waits::RULE, &network_policy_ports::RULE,
        &dns_policy::RULE, &ft_host::RULE, &host_port::RULE,
    ]),
    ("can the pods be told apart, and do they agree", &[
        &node_rank::RULE, &node_count::RULE, &trains_alone::RULE, &agreement::RULE, &world_size::RULE,
        &more_processes::RULE, &mpi_slots::RULE, &parallelism::RULE, &gang::RULE,
        &unset_variable::RULE, &run_id::RULE, &never_starts::RULE, &sbatch_ignored::RULE, &ssh_waits::RULE,
        &api_rejects::RULE, &katib_trial::RULE,
    ]),
    ("the rest", &[
        &broken_line::RULE, &misread_word::RULE, &unknown_flag::RULE, &rdzv_conf_keys::RULE,
        &flags_of_other_backend::RULE, &c10d_restarts::RULE,
        &sleep_as_synchronisation::RULE, &shared_memory::RULE, &network_guess::RULE, &backoff_limit::RULE,
        &ordered_ready::RULE, &sidecar::RULE, &probes::RULE,
        &script_ends::RULE, &ray_ends::RULE, &ray_ports::RULE,
        &yaml::RULE, &template::RULE, &unknown_kind::RULE, &not_read::RULE, &no_launch::RULE,
        &skipped::RULE, &no_pods::RULE, &manifests::RULE,
    ]),
];
