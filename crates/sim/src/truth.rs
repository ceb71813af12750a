//! What is true of the runs. No answer may contradict it.

use std::collections::{BTreeMap, BTreeSet};

use rallypoint_rendezvous::{Participant, Payload, Round};

/// What nodes were told about one round.
#[derive(Debug, Default)]
struct ToldRound {
    /// The nodes and their payloads, by rank.
    nodes: Vec<(String, String)>,
    /// The join that was told each rank.
    told: BTreeMap<u32, (String, String)>,
    port: Option<u16>,
}

/// What nodes were told about a run.
#[derive(Debug, Default)]
pub(super) struct RunTruth {
    rounds: BTreeMap<u64, ToldRound>,
    /// How many nodes an operator expects. Several values are possible while an answer is missing.
    pub(super) expected: BTreeSet<Option<u32>>,
}

impl RunTruth {
    /// The greatest round number that a node was told.
    pub(super) fn last(&self) -> Option<u64> {
        self.rounds.last_key_value().map(|(&number, _)| number)
    }

    /// The server had no journal, so the next one knows nothing of this.
    pub(super) fn forget(&mut self) {
        self.rounds.clear();
        self.expected.insert(None);
    }

    /// Whether a round may have this number of nodes, in a run whose nodes ask for `min` to `max` nodes, if
    /// `there` are there.
    pub(super) fn may_have(&self, nodes: u32, (min, max): (u32, u32), there: u32) -> bool {
        let fits = |expected: &Option<u32>| there.min(expected.map_or(max, |it| it.clamp(min, max))) == nodes;
        if self.expected.is_empty() { fits(&None) } else { self.expected.iter().any(fits) }
    }

    /// The join of `node` with this payload gets this rank in this round.
    pub(super) fn complete(
        &mut self,
        round: &Round,
        (node, payload): (&str, &str),
        rank: u32,
        port: Option<u16>,
        (min, max): (u32, u32),
    ) -> Result<(), String> {
        let number = round.number;
        let said = |it: &Participant| it.payload.as_ref().map_or("", Payload::as_str).to_owned();
        let nodes: Vec<_> = round.participants.iter().map(|it| (it.node.to_string(), said(it))).collect();
        let size = nodes.len() as u32;
        if !(min..=max).contains(&size)
            || nodes.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len() != nodes.len()
        {
            return Err(format!("round {number} has these nodes: {nodes:?}"));
        }
        let mine = (node.to_owned(), payload.to_owned());
        if nodes.get(rank as usize) != Some(&mine) {
            return Err(format!("{mine:?} is told rank {rank} of round {number}, which has {nodes:?}"));
        }
        let last = self.last();
        if !self.rounds.contains_key(&number) && last.is_some_and(|last| last > number) {
            return Err(format!("round {number} is complete after round {last:?}"));
        }
        let new = || ToldRound { nodes: nodes.clone(), port, ..ToldRound::default() };
        let known = self.rounds.entry(number).or_insert_with(new);
        if known.nodes != nodes || known.port != port {
            return Err(format!(
                "round {number} was complete with {:?} and store {:?}, and is so again with {nodes:?} and \
                 {port:?}",
                known.nodes, known.port
            ));
        }
        if let Some((other, _)) = known.told.get(&rank).filter(|it| it.0 != mine.0) {
            return Err(format!("rank {rank} of round {number} is told to {node}, and was told to {other}"));
        }
        if let Some((other, _)) = known.told.iter().find(|(other, it)| **other != rank && **it == mine) {
            return Err(format!("{node} is told rank {rank} of round {number}, and was told rank {other}"));
        }
        known.told.insert(rank, mine);
        Ok(())
    }

    /// A node of round `number` is told to continue.
    pub(super) fn goes_on(&self, node: &str, number: u64) -> Result<(), String> {
        match self.last().filter(|&last| last > number) {
            Some(last) => Err(format!(
                "{node} is told to go on in round {number}, and round {last} is complete: two rounds at once"
            )),
            None => Ok(()),
        }
    }
}
