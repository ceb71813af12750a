//! What schedules were worth: how much happened in them and was compared.

/// What a run was worth.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) requests: u64,
    pub(super) crashes: u64,
    pub(super) breaks: u64,
    /// How often everything stood still and was compared.
    pub(super) compared: u64,
    /// How often a node was told its rank.
    pub(super) rounds: u64,
    /// Ranks of nodes that have met the others and trained.
    pub(super) trained: u64,
    /// Words of insight that were compared.
    pub(super) said: u64,
    /// Stands for the times of all events and for all that was written to the disk: another one where anything went
    /// another way.
    pub(super) course: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.breaks += other.breaks;
        self.compared += other.compared;
        self.rounds += other.rounds;
        self.trained += other.trained;
        self.said += other.said;
        self.course ^= other.course;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { events, requests, crashes, breaks, compared, rounds, trained, said, course: _ } = self;
        write!(
            f,
            "{events} events, {requests} requests, {crashes} deaths of the server, {breaks} breaks of a link, {rounds} \
             ranks told, {trained} of them trained, {said} words of insight, {compared} comparisons at rest"
        )
    }
}
