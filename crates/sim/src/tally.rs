//! The results of schedules: how much happened in them and was compared.

/// The result of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) requests: u64,
    pub(super) crashes: u64,
    pub(super) breaks: u64,
    /// How often the world came to rest and was compared.
    pub(super) compared: u64,
    /// How often a node was told its rank.
    pub(super) rounds: u64,
    /// Ranks that have met the others and trained.
    pub(super) trained: u64,
    /// Explanations of insight that were compared.
    pub(super) said: u64,
    /// A digest of the times of all events and of everything written to the disk. It differs if anything went
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
            "{events} events, {requests} requests, {crashes} deaths of the server, {breaks} breaks of a \
             link, {rounds} ranks told, {trained} of them trained, {said} words of insight, {compared} \
             comparisons at rest"
        )
    }
}
