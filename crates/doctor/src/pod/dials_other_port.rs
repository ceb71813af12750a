//! Processes that save checkpoints dial such a port if nobody hosts a store for them at `MASTER_ADDR`.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "dials-other-port",
    sees: "WARN: a process tries to connect to the store's host at another port, as [processes that save \
           checkpoints](launch-modes.md#checkpoints-saved-by-processes) do",
    remedy: "`DCP_USE_PREFIX_STORE=1`",
    find: Find::Network(find),
};

fn find(facts: &NetworkFacts) -> Option<Check> {
    let (who, addr) = facts.dialing.first()?;
    let more = match facts.dialing.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(", and {more} more do so"),
    };
    Some(Check::warn(
        format!(
            "{who} tries to connect to {addr}, and nothing answers there{more}: that is the store's host, \
             and no rank's"
        ),
        "if it is of dcp.async_save in processes: DCP_USE_PREFIX_STORE=1 on every rank (torch 2.10 or \
         later); `rallypoint run` sets it. Else look what hosts a store on that port, and name its own host",
    ))
}
