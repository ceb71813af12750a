
"use strict";
// What the server says: events as they come, the chosen run's document when it has changed. The page is told by
// `changed()`, which the last part of this script defines.

const RETRY_MS = 1000, MAX_RETRY_MS = 5000, POLL_MS = 2000, FIRST_EVENT_MS = 5000;
// The server sends at least a comment every 15 s.
const SILENCE_MS = 35000;
// The chosen run is fetched again when it has changed, at the most so often; and now and then, as the times in
// sentences and of heartbeats grow without a change.
const FETCH_MS = 250, REFETCH_MS = 5000;
// How often the server is asked how it is itself.
const HEALTH_MS = 5000;
// More than this is not kept of a list that the server sends.
const MAX_MOMENTS = 256;

const seen = {
  runs: new Map(), explanations: [], lost: 0, links: null, version: "", health: null,
  chosen: null, detail: null, missing: false, moments: [],
  // starting, live, polling, locked, gone; since when (this clock, ms), and why.
  link: "starting", since: Date.now(), why: "", lastHeard: 0, events: 0,
};
// What to add to this clock to have the server's, in seconds.
let skew = 0;

// Two stores may each have a run of one id. The workers of a native run get another store in each round.
const keyOf = (run) => (run.kind === "native" ? run.run_id : `${run.store} ${run.run_id}`);

// The server's time in seconds. It stands still while the server is gone, because then nothing is known.
function now() {
  return (seen.link === "gone" ? seen.lastHeard : Date.now()) / 1000 + skew;
}

function heard(document) {
  seen.lastHeard = Date.now();
  if (document && typeof document.now === "number") skew = document.now - Date.now() / 1000;
}

function linkIs(link, why = "") {
  if (seen.link !== link) { seen.link = link; seen.since = Date.now(); }
  seen.why = why;
  changed();
}

// The server wants a token. It goes into a cookie, which no script can read; never into an address.
let unlocked = null;
function locked() {
  linkIs("locked");
  return new Promise((done) => { unlocked = done; });
}
async function unlock(token) {
  const answer = await fetch("api/v1/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }), signal: AbortSignal.timeout(10000),
  });
  if (!answer.ok) throw new Error((await answer.json()).detail);
  unlocked?.();
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const visible = () => new Promise((done) => {
  if (!document.hidden) return done();
  document.addEventListener("visibilitychange", () => done(), { once: true });
});

async function getJson(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw Object.assign(new Error(`${path}: status ${answer.status}`), { status: answer.status });
  return answer.json();
}

function takeList(list) {
  heard(list);
  seen.runs = new Map(list.runs.map((run) => [keyOf(run), run]));
  seen.explanations = list.explanations || [];
  seen.lost = list.lost_observations || 0;
  seen.links = list.links || null;
  if (list.version) seen.version = list.version;
}

const EVENTS = {
  snapshot(list) { takeList(list); seen.missing = false; },
  run(run) { seen.runs.set(keyOf(run), run); },
  run_gone(run) { seen.runs.delete(keyOf(run)) || seen.runs.delete(run.run_id); },
  explanation(explanation) {
    const replaced = (list) => {
      const others = list.filter((other) => other.id !== explanation.id);
      return explanation.holds || others.length < list.length ? [explanation, ...others] : list;
    };
    if (explanation.run_id === null) seen.explanations = replaced(seen.explanations).slice(0, 50);
    else if (seen.detail && [seen.detail.store, null].includes(explanation.store) && seen.detail.run_id === explanation.run_id) {
      seen.detail = { ...seen.detail, explanations: replaced(seen.detail.explanations) };
      stale = true;
    }
  },
  links(links) { seen.links = links; },
  moment(moment) { seen.moments = [...seen.moments, moment].slice(-MAX_MOMENTS); },
};

// One connection to the events, until it ends. Throws when it could not be made.
async function follow() {
  const stop = new AbortController();
  let silence;
  const awaitNext = (ms) => {
    clearTimeout(silence);
    silence = setTimeout(() => stop.abort(new Error("the server is silent")), ms);
  };
  // A page that is hidden asks the server for nothing.
  const hide = () => document.hidden && stop.abort(new Error("hidden"));
  document.addEventListener("visibilitychange", hide);
  try {
    awaitNext(FIRST_EVENT_MS);
    const answer = await fetch("api/v1/events", { cache: "no-store", signal: stop.signal, headers: { Accept: "text/event-stream" } });
    if (!answer.ok || !answer.body) throw new Error(`api/v1/events: status ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the server closed the connection");
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      heard();
      // Until the first event has come, it is not known whether a proxy on the way holds events back.
      if (blocks.length > 0) awaitNext(SILENCE_MS);
      for (const block of blocks) take(block);
      if (blocks.length > 0) changed();
    }
  } finally {
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", hide);
    stop.abort();
  }
}

function take(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  if (data.length === 0 || !Object.hasOwn(EVENTS, name)) return;
  EVENTS[name](JSON.parse(data.join("\n")));
  seen.events += 1;
  if (seen.link !== "live") linkIs("live");
}

async function stayConnected() {
  let retry = RETRY_MS;
  for (;;) {
    await visible();
    const before = seen.events;
    let why;
    try { await follow(); } catch (error) { why = error; }
    if (document.hidden) continue;
    const wasLive = seen.events > before;
    // Without events, a look every now and then tells the same a little later.
    try {
      takeList(await getJson("api/v1/runs"));
      if (!wasLive) linkIs("polling", String(why.message || why));
      changed();
      retry = wasLive ? RETRY_MS : POLL_MS;
    } catch (error) {
      if (error.status === 401) {
        // What was seen with an older token is not for whoever comes next.
        takeList({ runs: [] });
        await locked();
        linkIs("starting");
        continue;
      }
      linkIs("gone", String(error.message || error));
      retry = wasLive ? RETRY_MS : Math.min(retry * 1.5, MAX_RETRY_MS);
    }
    await pause(retry);
  }
}

// Whether the chosen run's document is older than what is known of it.
let stale = true;

async function keepDetail() {
  let fetched = 0, cost = 0;
  for (;;) {
    await pause(50);
    const run = seen.runs.get(seen.chosen);
    if (!run || document.hidden || ["gone", "starting", "locked"].includes(seen.link)) continue;
    const other = !seen.detail || keyOf(seen.detail) !== seen.chosen;
    const changedSince = other || stale || seen.detail.version !== run.version;
    const age = performance.now() - fetched;
    const old = age > Math.max(REFETCH_MS, 50 * cost) && !["finished", "ended", "closed", "gone"].includes(run.state);
    // The longer an answer takes, the less often it is asked for.
    if (!other && (age < Math.max(FETCH_MS, 4 * cost) || !(changedSince || old))) continue;
    const began = performance.now();
    try {
      const store = run.kind === "native" || run.store === null ? `?kind=${run.kind}` : `?store=${run.store}`;
      const detail = await getJson(`api/v1/runs/${encodeURIComponent(run.run_id)}${store}`);
      stale = false;
      heard(detail);
      const later = seen.runs.get(keyOf(run));
      if (later && later.version < detail.version) seen.runs.set(keyOf(run), detail);
      if (seen.chosen === keyOf(run)) seen.detail = detail;
      changed();
    } catch (error) {
      // Gone meanwhile, or the server is: the events tell which.
      await pause(POLL_MS);
    }
    fetched = performance.now();
    cost = fetched - began;
  }
}

async function keepHealth() {
  for (;;) {
    await visible();
    // A server that wants a token, or does not answer, is asked by who follows its events.
    const asks = !["locked", "gone"].includes(seen.link);
    try { seen.health = asks ? await getJson("api/v1/server") : null; } catch { seen.health = null; }
    changed();
    await pause(HEALTH_MS);
  }
}

// What each kind of explanation means: the document of this release, fetched when somebody asks.
let meanings = null;
async function meaningOf(code) {
  meanings ||= fetch("docs/explanations.md").then((answer) => answer.text());
  const part = (await meanings).split("\n### ").find((text) => text.startsWith(`\`${code}\``)) || "";
  // Its heading comes first, then the meaning, then an example.
  return part.split("\n\n").slice(1).filter((text) => !text.startsWith(">")).map((text) => text.replaceAll("\n", " "))[0] || "";
}
