
// The document: what is seen becomes text and cells. Everything a peer chose goes in as text, never as markup.

const $ = (id) => document.getElementById(id);

// What would hide, or turn around, the rest of a line is shown by its number.
const plain = (text) => String(text ?? "").slice(0, 2000)
  .replace(/[\p{Cc}\u200e\u200f\u2028-\u202e\u2066-\u2069]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : plain(child))));
  return node;
}

function write(id, text) {
  const node = $(id), shown = plain(text);
  if (node.textContent !== shown) node.textContent = shown;
}

function elapsed(seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 9.95) return `${+seconds.toFixed(1)} s`;
  const s = Math.round(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  const [big, small] = d ? [`${d} d`, h % 24 && `${h % 24} h`] : h ? [`${h} h`, m % 60 && `${m % 60} min`]
    : m ? [`${m} min`, s % 60 && `${s % 60} s`] : [`${s} s`, 0];
  return small ? `${big} ${small}` : big;
}
const after = (seconds) => `+${seconds < 99.95 ? `${seconds.toFixed(1)} s` : elapsed(seconds)}`;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });
const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

// A time that goes on by itself: `since` a moment of the server, in words.
const ticking = (since, before = "", behind = "") => {
  const node = el("span", { "data-since": since, "data-before": before, "data-behind": behind });
  tick(node);
  return node;
};
function tick(node) {
  const text = plain(`${node.dataset.before}${elapsed(now() - Number(node.dataset.since))}${node.dataset.behind}`);
  if (node.textContent !== text) node.textContent = text;
}

// ----- a run in words

const OVER = ["finished", "ended", "closed", "gone"];
const isOver = (run) => OVER.includes(run.state);
const hasRounds = (run) => run.round > 0 || run.kind === "c10d" || run.kind === "native";
const textOf = (run, text) => {
  // The name of the run stands above, with its round.
  const named = [`${nameOf(run)}: `, `${run.run_id}: `, `${run.run_id} `].find((name) => text.startsWith(name));
  return text.slice(named?.length || 0);
};
const nameOf = (run) => (hasRounds(run) ? `${run.run_id} round ${run.round}` : run.run_id);

function progress(run) {
  const { nodes, ranks } = run;
  // Once all nodes are there, it is the ranks that somebody waits for.
  const published = ranks ? ranks.joined + ranks.away + ranks.gone : 0;
  const ranksMissing = run.state === "running" && ranks && ranks.expected !== null && published < ranks.expected;
  if (run.kind === "env" || ranksMissing) return { joined: published - (ranks?.away || 0), gone: ["finished", "ended"].includes(run.state) ? 0 : ranks?.gone || 0, of: ranks?.expected ?? null, what: "ranks" };
  const expected = nodes.expected;
  const of = !expected ? null : run.state === "last_call" ? expected.max
    : run.state === "joining" ? expected.min : Math.max(expected.min, nodes.joined + nodes.gone);
  // Who waits for the next round is there.
  const places = expected ? Math.max(0, expected.max - nodes.joined) : Infinity;
  const again = run.state === "restarting" ? Math.min(nodes.waiting, places) : 0;
  return { joined: nodes.joined + nodes.gone + again, gone: nodes.gone, of, what: "nodes" };
}

function fraction(run) {
  const { joined, gone, of, what } = progress(run), there = what === "nodes" ? joined - gone : joined, range = run.nodes.expected;
  const written = range && range.min !== range.max && what === "nodes" ? `${range.min}:${range.max}` : of ?? "?";
  return `${there}/${written} ${what}`;
}

// Nodes whose processes ended when the round was complete, as those of `rallypoint join`, send no heartbeats.
function areUnheard(run, detail) {
  const joined = run.kind === "native" && detail ? detail.participants.filter((node) => node.state === "joined") : [];
  return joined.length > 0 && joined.every((node) => node.last_heartbeat === null);
}

function sentenceOf(run, detail) {
  const { nodes, ranks, exit } = run, missing = nodes.missing, min = nodes.expected?.min;
  const ranksMissing = ranks && ranks.expected !== null ? ranks.expected - ranks.joined - ranks.away - ranks.gone : 0;
  const nodesGone = nodes.gone > 0 ? `${count(nodes.gone, "node")} ${nodes.gone === 1 ? "is" : "are"} gone` : "";
  switch (run.state) {
    case "joining":
      if (run.kind === "env" && !ranks?.expected) return "How many ranks are to come is not known";
      if (run.kind === "env") return ranksMissing > 0 ? `Waiting for ${ranksMissing} of ${count(ranks.expected, "rank")}` : "The ranks are joining";
      if (missing === null) return `${count(nodes.joined, "node")} ${nodes.joined === 1 ? "has" : "have"} joined; how many are expected is not known`;
      if (!nodes.expected) return `Waiting for ${count(missing, "node")}, and maybe more`;
      return missing > 0 ? `Waiting for ${missing} of ${count(min, "node")}` : `All ${count(min, "node")} are there`;
    case "last_call": {
      const more = nodes.expected ? nodes.expected.max - nodes.joined : 0;
      return `${count(nodes.joined, "node")} are there; ${more > 0 ? `${more} more may still come` : "the round closes"}`;
    }
    case "exchanging": return `All ${count(nodes.joined, "node")} are there and exchange roles and addresses`;
    case "running":
      if (nodesGone) return `Running, but ${nodesGone}`;
      if (ranksMissing > 0) return `Waiting for ${ranksMissing} of ${count(ranks.expected, "rank")}`;
      if (run.kind === "env" && ranks?.gone > 0 && !ranks.joined && !ranks.away && !ranks.connected) return "All its connections have closed";
      if (ranks?.gone > 0) return `Running; ${count(ranks.gone, "rank")} disconnected`;
      if (run.kind !== "env") return areUnheard(run, detail) ? `Complete: ${count(nodes.joined, "node")}; whether they are there is not known` : `Running: ${count(nodes.joined, "node")}`;
      if (!ranks || ranks.have_met) return `Running: ${count(ranks?.joined || 0, "rank")}`;
      return `${ranks.joined + ranks.away > 0 ? `All ${count(ranks.joined + ranks.away, "rank")} have published their addresses` : "The first has published its address"}; whether they have met is not visible here`;
    case "restarting": return `Restarting: ${count(nodes.waiting, "node")} ${nodes.waiting === 1 ? "waits" : "wait"} for the next round${nodesGone && `; ${nodesGone}`}`;
    case "exiting": return `${exit?.arrived ?? 0} of ${count(exit?.expected ?? nodes.joined, "node")} have finished`;
    case "finished": return "Finished";
    case "ended": return "All its connections have closed";
    case "closed": return run.completed_at ? "Closed before all nodes had finished" : "Closed; its round was never complete";
    case "gone": return "All its connections are gone";
    default: return plain(run.state);
  }
}

const KIND = { c10d: "torchrun, c10d rendezvous", static: "torchrun, static rendezvous", env: "ranks without an agent", native: "rallypoint rendezvous", gathering: "pods gather before they start" };
const SOURCE = {
  api: "set by hand", announced: "announced by the pods", flag: "from serve --nodes", join: "from the first join",
  role_exchange: "seen in the role exchange", round_complete: "seen when the round was complete",
  gloo_address: "seen in the ranks' addresses", earlier_round: "a guess from an earlier round",
};

// The run that needs attention most comes first, as the server's own list has it.
function attention(run) {
  if (isOver(run)) return 3;
  if (!run.explanation) return 2;
  return run.explanation.severity === "error" ? 0 : run.explanation.severity === "warning" ? 1 : 2;
}
const inOrder = () => [...seen.runs.values()]
  .sort((a, b) => attention(a) - attention(b) || b.started_at - a.started_at || (a.run_id < b.run_id ? -1 : 1));

// ----- cells

function nodeCells(run) {
  const expected = run.nodes.expected;
  const cells = [], later = [];
  const noteOf = (node) => {
    const rank = node.rank === null ? "" : `rank ${node.rank}`;
    const came = node.after_seconds === null ? "" : after(node.after_seconds);
    return node.state === "joined" ? [rank, came].filter(Boolean).join("  ") : [rank, STATES[node.state]].filter(Boolean).join("  ");
  };
  const ranked = run.participants.some((node) => node.rank !== null);
  const place = (cell, rank) => {
    // A rank is a place only where ranks are known; one whose place is taken is put at the end.
    if (ranked && rank !== null && rank < MAX_CELLS && !cells[rank]) cells[rank] = cell; else later.push(cell);
  };
  for (const node of run.participants) {
    const short = node.state !== "joined" ? STATES[node.state] : node.rank === null ? "" : `rank ${node.rank}`;
    place({ state: node.state, name: plain(node.name), note: noteOf(node), short, node }, node.rank);
  }
  // One that was there is its own cell already.
  const gone = new Set(run.participants.filter((node) => node.state === "gone").map((node) => node.name));
  const absent = isOver(run) ? [] : run.missing;
  for (const node of absent.filter((node) => !gone.has(node.name))) {
    const rank = node.rank === null ? "" : `rank ${node.rank}  `;
    place({ state: "missing", name: plain(node.name || `node ${node.rank ?? "?"}`), note: `${rank}missing`, short: "missing", absent: node }, node.rank);
  }
  for (let i = 0; later.length > 0; i += 1) if (!cells[i]) cells[i] = later.shift();
  if (!isOver(run) && expected) {
    const missing = Math.max(0, (run.nodes.missing ?? 0) - absent.length);
    const may = ["joining", "last_call"].includes(run.state) ? Math.max(0, expected.max - Math.max(expected.min, run.nodes.joined)) : 0;
    let left = Math.min(missing + may, MAX_CELLS), hollow = missing;
    for (let i = 0; left > 0; i += 1) {
      if (cells[i]) continue;
      cells[i] = hollow > 0 ? { state: "missing", name: "not here yet", note: "missing" } : { state: "free", name: "free", note: "may still join" };
      hollow -= 1; left -= 1;
    }
  }
  for (let i = 0; i < cells.length; i += 1) cells[i] ||= { state: "missing", name: `rank ${i}`, note: "missing" };
  return cells;
}

function tellNode(cell) {
  const { node, absent } = cell;
  if (!node && !absent) return [cell.name, cell.state === "free" ? "may still join this round" : "nobody has told its name"];
  if (absent) {
    const presence = { closed: "connection closed", not_back: "not seen since the server was restarted", not_again: "not seen since the last attempt ended", unknown: "in the round before" };
    return [cell.name, "missing", absent.rank === null ? "" : `rank ${absent.rank}`, presence[absent.presence] || plain(absent.presence).replaceAll("_", " "),
      absent.last_seen === null ? "" : `last seen ${elapsed(now() - absent.last_seen)} ago`].filter(Boolean);
  }
  const workers = node.local_world_size;
  return [cell.name, node.rank === null ? "" : `rank ${node.rank}`, STATES[node.state] || plain(node.state),
    node.after_seconds === null ? "" : `${after(node.after_seconds)} after the first`,
    node.gone_at === null ? "" : `gone since ${clock(node.gone_at)}`,
    node.peer === null ? "" : plain(node.peer), node.pid === null ? "" : `pid ${node.pid}`,
    node.last_heartbeat === null ? "" : `last heard of at ${clock(node.last_heartbeat)}`,
    node.base_rank === null || workers === null ? "" : workers === 1 ? `worker rank ${node.base_rank}`
      : `worker ranks ${node.base_rank} to ${node.base_rank + workers - 1}`].filter(Boolean);
}

function rankCells(run) {
  const grid = run.rank_grid;
  const known = new Map(grid.ranks.map((rank) => [rank.rank, rank]));
  const state = { ".": isOver(run) ? "free" : "missing", j: "joined", a: "away", x: isOver(run) ? "joined" : "disconnected" };
  const cells = Array.from(grid.states.slice(0, MAX_CELLS), (c, rank) => ({ state: state[c] || "redundant", rank: known.get(rank) }));
  for (let left = Math.min(grid.world_size ?? 0, MAX_CELLS) - cells.length; left > 0; left -= 1) cells.push({ state: state["."] });
  return cells;
}

function tellRank(cell, i) {
  const rank = cell.rank;
  const state = cell.state === "joined" ? "has published its address" : cell.state === "missing" ? "has not published its address" : STATES[cell.state];
  if (!rank) return [`rank ${i}`, state];
  return [`rank ${i}`, state, plain(rank.host ?? ""), plain(rank.peer ?? ""), rank.pid === null ? "" : `pid ${rank.pid}`,
    `at ${clock(rank.joined_at)}`, rank.gone_at === null ? "" : `disconnected since ${clock(rank.gone_at)}`].filter(Boolean);
}

const nodeGrid = new Grid("nodes", tellNode), rankGrid = new Grid("ranks", tellRank);

// ----- parts of the page

function showLink() {
  const { link, since, why } = seen, gone = link === "gone";
  const time = new Date(since).toLocaleTimeString([], { hourCycle: "h23" });
  const texts = {
    starting: "connecting", live: "live", polling: `looking every ${POLL_MS / 1000} s (no events)`, gone: "no answer, trying again",
    locked: "a token is wanted",
  };
  $("link").dataset.link = link;
  write("link", texts[link]);
  document.body.classList.toggle("stale", gone);
  $("gone").hidden = !gone;
  document.body.classList.toggle("locked", link === "locked");
  if ($("door").hidden !== (link !== "locked")) {
    $("door").hidden = link !== "locked";
    $("token").focus();
  }
  const old = seen.lastHeard > 0 ? " What you see is from then." : "";
  if (gone) write("gone", `The server does not answer since ${time} (${elapsed((Date.now() - since) / 1000)}).${old} Trying again by itself.`);
  $("gone").title = plain(why);
}

// The list is for finding a run by a part of its name. What is shown beside it stays.
const FIND_FROM = 8;
function found(runs) {
  const box = $("find"), words = box.value.trim().toLowerCase();
  box.hidden = runs.length < FIND_FROM && words === "";
  return runs.filter((run) => run.run_id.toLowerCase().includes(words));
}

function showRuns(all) {
  const runs = found(all);
  const list = $("runs"), there = new Map([...list.children].map((item) => [item.dataset.run, item]));
  write("run-count", runs.length < all.length ? `${runs.length} of ${all.length}` : all.length > 0 ? String(all.length) : "");
  const wanted = runs.map((run) => {
    const { joined, gone, of } = progress(run), mark = !isOver(run) && run.explanation?.severity;
    const told = JSON.stringify([fraction(run), run.state, mark, gone, run.round, keyOf(run) === seen.chosen]);
    const old = there.get(keyOf(run));
    if (old && old.dataset.told === told) return old;
    const share = (n) => `${of ? (100 * n) / Math.max(of, joined) : 0}%`;
    const alive = el("i", {}), dead = el("i", { class: "gone" });
    alive.style.width = share(joined - Math.min(gone, joined));
    dead.style.width = share(gone);
    const link = el("a", { href: addressOf(run), class: isOver(run) ? "over" : "" },
      el("span", { class: "name" }, el("span", { title: plain(run.run_id) }, run.run_id),
        ...(["error", "warning"].includes(mark) ? [el("span", { class: `mark ${mark}` }, mark)] : [])),
      el("span", { class: "meter", "aria-hidden": "true" }, alive, dead),
      el("span", { class: "row" }, el("span", {}, run.state.replace("_", " ") + (hasRounds(run) ? `, round ${run.round}` : "")), el("span", {}, fraction(run))));
    if (keyOf(run) === seen.chosen) link.setAttribute("aria-current", "true");
    // The item stays, so that it keeps the keyboard focus.
    const item = old || el("li", {});
    const focused = item.contains(document.activeElement);
    item.dataset.run = keyOf(run);
    item.dataset.told = told;
    item.replaceChildren(link);
    if (focused) link.focus();
    return item;
  });
  if (wanted.length !== list.children.length || wanted.some((item, i) => list.children[i] !== item)) {
    const focused = document.activeElement?.closest?.("#runs li");
    list.replaceChildren(...wanted);
    if (focused?.isConnected) focused.querySelector("a").focus();
  }
}

const SEEN = {
  waits: "has waited", wrote: "wrote", gave_up: "gave up to wait", joined: "joined", closed: "closed its connection", heard: "was heard of last", left: "left",
};

// One thing that was seen: who did what, on which connection.
function seenToDo({ seen: did, who, peer, pid, key, at }) {
  const from = [peer, pid !== null && `pid ${pid}`].filter(Boolean).join(", ");
  const what = key === null ? "" : ["waits", "gave_up"].includes(did) ? ` for ${key}` : ` ${key}`;
  return `${clock(at)} ${who}${from && ` (${from})`} ${SEEN[did] || did}${what}`;
}

// Explanations whose reasons somebody has opened: they stay open when the sentence is written anew.
const opened = new Set();
function reasons({ id, code, evidence }) {
  const meaning = el("p", {});
  const details = el("details", { class: "why" }, el("summary", {}, "Why it says so"), meaning,
    el("ul", {}, ...(evidence || []).map((one) => el("li", {}, seenToDo(one)))));
  const tell = async () => {
    if (!details.open) return opened.delete(id);
    opened.add(id);
    meaning.textContent = plain(await meaningOf(code).catch(() => ""));
  };
  details.addEventListener("toggle", tell);
  details.open = opened.has(id);
  return details;
}

function notice(explanation, text) {
  const { severity, remedy, since, holds, certainty } = explanation;
  const known = ["error", "warning", "info"].includes(severity) ? severity : "info";
  const word = { error: "Error", warning: "Warning", info: "Note" }[known];
  const how = certainty === "eliminated" ? ", by elimination" : "";
  return el("div", { class: `notice ${known}${holds ? "" : " over"}`, "data-code": plain(explanation.code) },
    el("p", { class: "text" }, text), ...(remedy ? [el("p", { class: "remedy" }, remedy)] : []),
    el("p", { class: "when" }, `${word}${how}, ${holds ? "since" : "at"} ${clock(since)} (`, ticking(since), holds ? ")" : " ago)"),
    reasons(explanation));
}

// Puts children in only when what they are made from has changed.
const made = new WeakMap();
function rebuild(id, source, children) {
  const node = $(id), told = JSON.stringify(source);
  if (made.get(node) === told) return;
  made.set(node, told);
  node.replaceChildren(...children());
}

function showState(run, detail) {
  const where = run.store === null ? "" : `, store on port ${run.store}`;
  rebuild("run-name", [nameOf(run), run.kind, where], () => [el("b", {}, nameOf(run)), ` · ${KIND[run.kind] || plain(run.kind)}${where}`]);
  write("sentence", sentenceOf(run, detail));
  const from = run.state === "joining" ? run.started_at : run.state_since;
  const source = run.nodes.expected ? `; the number of nodes is ${SOURCE[run.nodes.expected.source] || plain(run.nodes.expected.source)}` : "";
  const closes = run.deadline && !isOver(run) ? `; closes at ${clock(run.deadline)}` : "";
  const extra = [run.nodes.waiting && `${count(run.nodes.waiting, "node")} in the wait list`, run.nodes.earlier && `${count(run.nodes.earlier, "node")} not joined again`, run.nodes.redundant && `${run.nodes.redundant} beyond the maximum`,
    run.nodes.finished && `${run.nodes.finished} finished in the round before`,
    run.exit && run.state !== "exiting" && `${run.exit.arrived} finished`, detail?.workers_store && `its workers were told to meet at ${detail.workers_store}`].filter(Boolean);
  const debug = detail?.debug_server;
  rebuild("since", [from, closes, source, extra, debug], () => [
    isOver(run) ? ticking(from, "", " ago") : ticking(from, "for "), plain(`${closes}${source}${extra.map((text) => `; ${text}`).join("")}`),
    ...(debug ? ["; ", el("a", { href: `http://${debug}/`, title: "torch.distributed.debug, if it has its usual port" }, "stacks of its ranks")] : [])]);
  // What is over and asks for nothing is shown below, in the timeline.
  const said = (detail ? detail.explanations : run.explanation ? [run.explanation] : []).filter((e) => e.holds || e.severity !== "info");
  rebuild("explanations", said, () => said.slice(0, 30).map((e) => notice(e, textOf(run, e.text))));
}

const counted = (cells) => {
  const of = (state) => cells.filter((cell) => cell.state === state).length;
  return ["joined", "finished", "missing", "gone", "disconnected"].filter((state) => of(state) > 0)
    .map((state) => `${of(state)} ${STATES[state]}`).join(", ");
};

// Numbers in ascending order as ranges: 2, 5-7, 12.
function ranges(numbers) {
  const found = [];
  for (const n of numbers) {
    const range = found.at(-1);
    if (range && range[1] === n - 1) range[1] = n; else found.push([n, n]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
}

// In a large grid a red dot is easily overlooked, so what is missing or gone is named as well.
function whoIsNot(cells, called) {
  const list = (state) => {
    const { all, named } = called(cells.map((cell, i) => [cell, i]).filter(([cell]) => cell.state === state));
    if (named.length === 0) return "";
    const more = all - Math.min(named.length, 8);
    return `${STATES[state]}: ${named.slice(0, 8).join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
  };
  return ["gone", "disconnected", "missing"].map(list).filter(Boolean).join("; ");
}
const byName = (found) => ({ all: found.length, named: found.filter(([cell]) => cell.node || cell.absent).map(([cell]) => cell.name) });
function byNumber(found) {
  const named = ranges(found.map(([, i]) => i));
  return { all: named.length, named };
}

let drawn = null;
function showGrids(detail) {
  if (drawn === detail) return;
  drawn = detail;
  const cells = nodeCells(detail);
  $("nodes").hidden = cells.length === 0;
  if (cells.length > 0) {
    const { joined, expected } = detail.nodes;
    write("nodes-summary", !expected ? `${joined}` : expected.min === expected.max ? `${joined} of ${expected.min}` : `${joined} of ${expected.min} to ${expected.max}`);
    write("nodes-who", cells.length > 16 ? whoIsNot(cells, byName) : "");
    nodeGrid.show(cells, 1, `${count(cells.length, "node")}: ${counted(cells)}`);
    showTable("nodes", cells);
  }
  const ranks = detail.rank_grid ? rankCells(detail) : [];
  $("ranks").hidden = ranks.length === 0;
  if (ranks.length > 0) {
    const { joined, gone, expected, connected } = detail.ranks || { joined: 0, gone: 0, expected: null, connected: 0 };
    write("ranks-summary", `${joined + gone} of ${expected ?? "an unknown number"} have published their address${connected > joined + gone ? `, ${connected} connected` : ""}`);
    const unit = detail.participants.find((node) => node.local_world_size)?.local_world_size || 1;
    write("ranks-who", ranks.length > 16 ? whoIsNot(ranks, byNumber) : "");
    rankGrid.show(ranks, unit, `${count(ranks.length, "rank")}: ${counted(ranks)}`);
    showTable("ranks", ranks);
  }
  showJoins(detail);
  showWaits(detail.waits);
}

// The cells in words, made only for those who open it.
function showTable(grid, cells) {
  if (!$(`${grid}-table`).open) return;
  const rows = cells.map((cell) => [cell.name, STATES[cell.state], cell.note]);
  rebuild(`${grid}-rows`, rows, () => rows.map((row) => el("tr", {}, ...row.map((text) => el("td", {}, text)))));
}

function showJoins(detail) {
  const came = detail.participants.filter((node) => node.after_seconds !== null).sort((a, b) => a.after_seconds - b.after_seconds);
  $("joins").hidden = came.length === 0;
  if (came.length === 0) return;
  const last = came.at(-1), before = came.at(-2), half = came[Math.ceil(came.length / 2) - 1];
  const late = before ? `; ${after(last.after_seconds - before.after_seconds).slice(1)} after the one before` : "";
  const told = came.length === 1 ? `${last.name} is the first` :
    `first ${came[0].name}, half of them after ${elapsed(half.after_seconds)}, last ${last.name} ${after(last.after_seconds)}${late}`;
  write("joins-summary", told);
  $("joins-chart").setAttribute("aria-label", plain(`Number of nodes over time: ${told}`));
  const until = ["joining", "last_call"].includes(detail.state) ? detail.now - detail.started_at : 0;
  drawJoins($("joins-chart"), came.map((node) => node.after_seconds), detail.nodes.expected?.min, until, plain(last.name));
  const slow = came.slice(-6).reverse();
  rebuild("joins-last", slow.map((node) => [node.name, node.rank, node.after_seconds]), () => slow.map((node) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(100 * node.after_seconds) / Math.max(last.after_seconds, 0.001)}%`;
    return el("li", {}, el("span", { class: "who", title: plain(node.name) }, node.name), el("span", { class: "after" }, after(node.after_seconds)), bar);
  }));
}

// Waits for the same key and for the same reason are one row.
function showWaits(waits) {
  $("waits").hidden = waits.length === 0;
  if (waits.length === 0) return;
  const groups = new Map();
  for (const wait of waits) {
    const same = JSON.stringify([wait.store, wait.op, wait.missing, wait.writer, wait.reason]);
    const group = groups.get(same) || { ...wait, all: [] };
    group.all.push(wait.who || wait.peer || "somebody");
    groups.set(same, group);
  }
  write("waits-summary", count(waits.length, "process").replace("processs", "processes"));
  const rows = [...groups.values()].slice(0, 100);
  const some = (list, most) => plain(list.slice(0, most).join(", ") + (list.length > most ? ` and ${list.length - most} more` : ""));
  $("waits-rows").replaceChildren(...rows.map((wait) => el("tr", {},
    el("td", {}, ticking(seen.detail.now - wait.waited_seconds)), el("td", { "data-label": "who" }, some(wait.all, 4)),
    el("td", { "data-label": "for" }, el("span", { class: "key" }, some(wait.missing, 3)), wait.keys > wait.missing.length ? ` of ${wait.keys} keys` : "",
      wait.op === "barrier" ? ` (barrier of ${wait.world_size ?? "?"})` : ""),
    el("td", { "data-label": "written by" }, wait.writer ?? "not known"), el("td", { "data-label": "why" }, wait.reason ?? ""))));
}

function showHistory(detail) {
  const known = detail.timeline, lastKnown = known.at(-1)?.at ?? -Infinity;
  const newer = seen.moments.filter((moment) => moment.run_id === detail.run_id && moment.at > lastKnown);
  const all = [...known, ...newer].slice(-MAX_MOMENTS).reverse();
  // What happened again and again is one line, with its last time.
  const lines = [];
  for (const { at, text } of all) {
    const line = lines.at(-1);
    if (line?.text === text) line.times += 1; else lines.push({ at, text, times: 1 });
  }
  $("history").hidden = lines.length === 0;
  rebuild("moments", [all[0]?.at, all.at(-1)?.at, all.length, keyOf(detail)], () => lines.map(({ at, text, times }) =>
    el("li", {}, el("time", {}, clock(at)), el("span", {}, textOf(detail, text), times > 1 ? ` (${times} times)` : ""))));
}

// Those that are away are named by an explanation.
function relays(links) {
  const all = links ? links.connected + links.away : 0;
  if (all === 0) return "";
  const away = links.away > 0 ? `, ${links.away} of them ${links.away === 1 ? "is" : "are"} away` : "";
  return `${count(all, "relay")} with ${count(links.clients, "client")}${away}`;
}

const bytes = (n) => {
  const unit = n > 0 ? Math.min(Math.floor(Math.log2(n) / 10), 4) : 0;
  return `${+(n / 1024 ** unit).toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};

// How the server itself is. What comes near its limit is marked.
function showHealth(health) {
  $("health").hidden = !health;
  if (!health) return;
  const { connections, max_connections, memory_bytes, max_memory_bytes, journal } = health;
  const share = (used, limit) => (used > 0.8 * limit ? "warning" : "");
  const facts = [
    ["Up for", elapsed(health.up_seconds), ""],
    ["State", health.ready ? "takes clients" : "is stopping", health.ready ? "" : "warning"],
    ["Connections", `${connections} (direct ones: at most ${max_connections})`, share(connections, max_connections)],
    ["Memory", `${bytes(memory_bytes)} of ${bytes(max_memory_bytes)}`, share(memory_bytes, max_memory_bytes)],
    ["Stores", String(health.stores), ""],
    ["Waiting", String(health.waiters), ""],
    ["Journal", !journal ? "none" : journal.error ? `cannot be written for ${elapsed(journal.broken_seconds)}: ${journal.error}` : journal.path, journal?.error ? "error" : ""],
  ];
  rebuild("health-facts", facts, () => facts.flatMap(([name, value, mark]) => [el("dt", {}, name), el("dd", { class: mark }, value)]));
}

function showNotices() {
  showHealth(seen.health);
  write("relays", relays(seen.links));
  const lost = seen.lost > 0 ? [{ id: 0, code: "lost", severity: "warning", since: now(), holds: true, remedy: "",
    text: `${count(seen.lost, "observation")} were lost because too many came at once; what is shown may be incomplete` }] : [];
  // What is no error stands below the jobs.
  const isError = (explanation) => explanation.severity === "error";
  rebuild("alarms", [seen.explanations, seen.lost], () => [...seen.explanations.filter(isError), ...lost].slice(0, 20).map((e) => notice(e, e.text)));
  rebuild("notices", seen.explanations, () => seen.explanations.filter((e) => !isError(e)).slice(0, 20).map((e) => notice(e, e.text)));
}

// ----- what is chosen

const addressOf = (run) => `#run=${encodeURIComponent(run.run_id)}${run.kind === "native" || run.store === null ? "" : `&store=${run.store}`}`;
function fromAddress() {
  const named = /^#run=([^&]*)(?:&store=([0-9]+))?$/.exec(location.hash);
  try { return named && { id: decodeURIComponent(named[1]), store: named[2] }; } catch { return null; }
}

function choose() {
  const named = fromAddress(), before = seen.chosen;
  const isNamed = (run) => run.run_id === named.id && (named.store === undefined || String(run.store) === named.store);
  const first = () => inOrder().map(keyOf)[0] ?? null;
  if (named) seen.chosen = [...seen.runs].find(([, run]) => isNamed(run))?.[0] ?? null;
  else if (!seen.runs.has(seen.chosen)) seen.chosen = first();
  if (seen.chosen !== before) { seen.detail = null; drawn = null; seen.moments = []; }
}

function show() {
  choose();
  showLink();
  showNotices();
  showRuns(inOrder());
  const run = seen.runs.get(seen.chosen), detail = seen.detail && keyOf(seen.detail) === seen.chosen ? seen.detail : null;
  $("whole").hidden = !run;
  $("empty").hidden = Boolean(run);
  write("version", seen.version && `rallypoint ${seen.version}`);
  const wrong = seen.link === "gone" ? "No answer" : seen.explanations.some((e) => e.severity === "error") ? "Server error" : "";
  document.title = plain([wrong, run && sentenceOf(run), run?.run_id, location.hostname].filter(Boolean).join(" · "));
  $("first").hidden = Boolean(run) || seen.lastHeard === 0 || !seen.health?.endpoint;
  if (!run) {
    write("empty-text", seen.lastHeard === 0 ? "Waiting for the server."
      : fromAddress() ? `The run ${fromAddress().id} is not here (any more).`
      : "No runs: no process has used one of PyTorch's keys at a store of this server. This page shows the first as soon as it comes.");
    const endpoint = seen.health?.endpoint;
    write("first-endpoint", endpoint);
    write("first-job", `torchrun --nnodes=1 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=${endpoint} --rdzv-conf=is_host=0 --rdzv-id=try train.py`);
    write("first-doctor", `rallypoint doctor ${endpoint}`);
    return;
  }
  showState(run, detail);
  for (const id of ["nodes", "ranks", "waits", "joins", "history"]) if (!detail) $(id).hidden = true;
  if (!detail) return;
  showGrids(detail);
  showHistory(detail);
}

// However many events come, the page is made anew at most four times a second.
const SHOW_MS = 250;
let shownAt = 0, waiting = null;
function changed() {
  if (waiting !== null) return;
  waiting = setTimeout(() => {
    waiting = null;
    shownAt = performance.now();
    show();
  }, Math.max(0, shownAt + SHOW_MS - performance.now()));
}

setInterval(() => {
  for (const node of document.querySelectorAll("[data-since]")) tick(node);
  showLink();
}, 1000);
addEventListener("hashchange", () => {
  changed();
});
$("runs").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const links = [...$("runs").querySelectorAll("a")], next = links[links.indexOf(document.activeElement) + step];
  if (next) next.focus();
  event.preventDefault();
});
$("door").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  try {
    await unlock(token);
    write("door-said", "");
  } catch (error) {
    write("door-said", `Not let in: ${error.message || error}`);
  }
});
$("find").addEventListener("input", () => showRuns(inOrder()));
for (const table of document.querySelectorAll("details")) table.addEventListener("toggle", () => { drawn = null; changed(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("run").focus(); });
function repaint() {
  readPalette();
  drawn = null;
  changed();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
addEventListener("resize", repaint);

readPalette();
show();
stayConnected();
keepDetail();
keepHealth();
