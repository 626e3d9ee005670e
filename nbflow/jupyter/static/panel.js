// @ts-check
// The panel of one workflow instance. One module, no imports, no build.
//
// Order: words and arithmetic (pure, tested by `node --test`), DOM helpers, the link to the kernel, the parts of the page,
// `render`. Text of users and steps reaches the page by `textContent` only. Rows and buttons are changed in place, so that
// focus and scroll position survive every update.

/** @typedef {{type: string, message: string, traceback?: string}} Failure */
/** @typedef {[string, string, number, string | null]} StepKey type, name, count, key of a map item */
/**
 * @typedef {object} Head
 * @property {string} status
 * @property {boolean} settled
 * @property {boolean} here
 * @property {string} owner
 * @property {boolean | null} alive
 * @property {number | null} started
 * @property {number | null} ended
 * @property {number | null} changed
 * @property {number} done
 * @property {number} total
 * @property {number} running
 * @property {number} retrying
 * @property {number} failed
 * @property {number} waiting
 * @property {number} replayed
 * @property {number} unreached
 * @property {number} [stale]
 * @property {number} [failed_items] of maps
 * @property {{done: number, total: number | null, running: number, retrying: number, failed: number} | null} [work] with the
 *   items of maps counted in place of the maps; total is null where nobody knows yet
 * @property {string | null} [rollback] how it ended
 * @property {string | null} [undone] what resuming runs again, where steps were undone
 * @property {boolean | null} [same] whether the cell's code is the one that ran last
 * @property {[string, string, number | null] | null} sleeping
 * @property {string | null} interrupted
 * @property {string | null} [held]
 * @property {Failure | null} error
 * @property {number} version
 */
/**
 * @typedef {object} Row
 * @property {number} i
 * @property {StepKey} key
 * @property {string} state
 * @property {number} [attempt]
 * @property {number | null} [limit]
 * @property {number | null} [started]
 * @property {number | null} [ended]
 * @property {number | null} [due]
 * @property {string | null} [event]
 * @property {boolean | number} [replayed] of a group: how many
 * @property {boolean} [stale]
 * @property {string} [note]
 * @property {number} [level] 2 inside a group
 * @property {[number, number | null, string][]} [tries] started, ended, state of each attempt, where there were several
 * @property {[number, number | null, string]} [progress] done, total, note
 * @property {Record<string, number>} [counts] of a group: how many stand where
 * @property {number | null} [total] of a group; null where nobody knows yet
 * @property {number} [rate] of a group: steps a second
 * @property {number} [gone] of a map: items that are recorded and not in the list any more
 * @property {boolean} [abandoned] a body of it that nobody waits for still runs
 * @property {boolean} [unreached] recorded, and the present code does not call it
 * @property {boolean} [open] of a group: its steps follow
 */
/**
 * @typedef {{name: string, count: number, event: string, prompt: string, due: number | null, since: number, schema: string | null}} Wait
 *   `schema` is the text of its JSON
 */
/**
 * @typedef {object} State
 * @property {number} seq
 * @property {string} engine
 * @property {number} now
 * @property {string} workflow
 * @property {string} id
 * @property {number} created
 * @property {string} params
 * @property {string} output
 * @property {boolean} [traceback] the instance's error can be asked for in full
 * @property {string} [place] where in the user's code it was raised
 * @property {Head} head
 * @property {Wait[]} waits
 * @property {{start: number, total: number, items: Row[]}} rows
 */
/** @typedef {{number: number, state: string, started: number, seconds: number | null, error: Failure | null}} Attempt */
/** @typedef {{attempt: number, stream: string, text: string, at: number | null, mime?: Record<string, string>, step?: StepKey}} LogItem */
/** @typedef {{total: number, items: LogItem[]}} Log */
/**
 * @typedef {{row: Row, preview: any, error: Failure | null, attempts: Attempt[], log: Log, code: string, diff: string, why: string[], wait?: Wait,
 *   closed?: string}} Detail
 *   `wait`: what an open wait asks; `closed`: why one that stands takes no answer
 */

export const ROW_HEIGHT = 24;
export const PAGE = 200;
export const LIST_HEIGHT = 312;
const ANSWER_MS = 3000;
const SILENCE_MS = 15000;
const HEARD_MS = 2000;
const SPOKEN_MS = 2000;
const REFRESH_MS = 500;
const SETTLED_MS = 600;
const BANNERS = 3;
const LATE_MS = 2000;
const NEAR_PX = 8;

// ---------------------------------------------------------------------------------------------------------------- words

/** What the states of a rollback handler are called. @type {Record<string, string>} */
const ROLLBACK = { running: "rolling back", finished: "rolled back", failed: "rollback failed" };

const FINISHED = ["complete", "errored", "terminated"];

/** @type {Record<string, {icon: string, word: string, tone: string}>} */
const STATUS = {
  queued: { icon: "queued", word: "Queued", tone: "muted" },
  running: { icon: "running", word: "Running", tone: "blue" },
  waiting: { icon: "sleeping", word: "Waiting", tone: "violet" },
  paused: { icon: "paused", word: "Paused", tone: "muted" },
  waitingForPause: { icon: "paused", word: "Pausing", tone: "muted" },
  rollingBack: { icon: "rolling", word: "Rolling back", tone: "violet" },
  errored: { icon: "failed", word: "Errored", tone: "red" },
  terminated: { icon: "stopped", word: "Terminated", tone: "muted" },
  complete: { icon: "done", word: "Complete", tone: "green" },
};

/** @type {Record<string, {icon: string, word: string, tone: string}>} */
const STEP = {
  running: { icon: "running", word: "running", tone: "blue" },
  retrying: { icon: "retrying", word: "retrying", tone: "amber" },
  sleeping: { icon: "sleeping", word: "sleeping", tone: "violet" },
  waiting: { icon: "waiting", word: "waiting for you", tone: "pink" },
  finished: { icon: "done", word: "done", tone: "green" },
  failed: { icon: "failed", word: "failed", tone: "red" },
  cancelled: { icon: "cancelled", word: "cancelled", tone: "muted" },
  interrupted: { icon: "interrupted", word: "interrupted", tone: "orange" },
};


/**
 * A duration in at most two units. `whole` leaves out tenths, for what is still counting.
 * @param {number} ms
 * @param {boolean} [whole]
 */
export function duration(ms, whole = false) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 0.1 && !whole) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 10 && !whole) return `${seconds.toFixed(1)}s`;
  const rounded = whole ? Math.floor(seconds) : Math.round(seconds);
  if (rounded < 60) return `${rounded}s`;
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (rounded < 3600) return `${Math.floor(rounded / 60)}m${pad(rounded % 60)}s`;
  if (rounded < 86400) return `${Math.floor(rounded / 3600)}h${pad(Math.floor((rounded % 3600) / 60))}m`;
  return `${Math.floor(rounded / 86400)}d ${Math.floor((rounded % 86400) / 3600)}h`;
}

/**
 * A moment of today as a time, of another day with its date.
 * @param {number} at
 * @param {number} now
 * @param {boolean} [exact] with seconds
 */
export function moment(at, now, exact = false) {
  const date = new Date(at);
  const today = new Date(now).toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(exact ? { second: "2-digit" } : {}) });
  return today ? time : `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

/** @param {number} n */
export function thousands(n) {
  return String(n).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * How the header says the status.
 * @param {Head} head
 * @returns {{icon: string, word: string, tone: string}}
 */
export function statusWords(head) {
  const elsewhere = !FINISHED.includes(head.status) && head.status !== "paused" && !head.here && Boolean(head.owner);
  if (elsewhere && head.alive === null) return { icon: "interrupted", word: "Last seen elsewhere", tone: "orange" };
  if ((elsewhere && head.alive === false) || (head.interrupted !== null && head.interrupted !== undefined)) {
    return { icon: "interrupted", word: "Interrupted", tone: "orange" };
  }
  return lifeWords(head);
}

/**
 * Whether nothing of it goes on as far as anybody here can tell: its clocks stand still.
 * @param {Head} head
 */
function standsStill(head) {
  return statusWords(head).icon === "interrupted";
}

/**
 * The moment up to which clocks have run: now, or when the last was heard of an instance that stands still.
 * @param {Head} head
 * @param {number} now
 */
export function runUntil(head, now) {
  return standsStill(head) ? (head.changed ?? now) : now;
}

/**
 * A row as it stands: what ran in a kernel that is gone does not run any more.
 * @param {Row} row
 * @param {Head} head
 * @returns {Row}
 */
export function asLeft(row, head) {
  if (!standsStill(head)) return row;
  const left = { ...row, state: row.state === "running" ? "interrupted" : row.state, rate: 0 };
  const { running, ...counts } = row.counts ?? {};
  return running ? { ...left, counts: { ...counts, interrupted: (counts.interrupted ?? 0) + running } } : left;
}

/**
 * @param {{status: string, waiting?: number, sleeping?: Head["sleeping"]}} of an instance that is not interrupted
 * @returns {{icon: string, word: string, tone: string}}
 */
function lifeWords({ status, waiting = 0, sleeping = null }) {
  if (status === "waiting" && waiting > 0) return { icon: "waiting", word: "Waiting for you", tone: "pink" };
  if (status === "waiting" && sleeping && sleeping[1] === "retry") return { icon: "retrying", word: "Retrying", tone: "amber" };
  if (status === "waiting" && sleeping) return { icon: "sleeping", word: "Sleeping", tone: "violet" };
  return STATUS[status] ?? { icon: "queued", word: status, tone: "muted" };
}

/**
 * The clock beside the status: how long it took, has been running, or sleeps.
 * @param {Head} head
 * @param {number} now
 */
export function elapsed(head, now) {
  if (head.started === null || head.started === undefined) return "";
  if (head.ended) return duration(head.ended - head.started);
  return duration(runUntil(head, now) - head.started, true);
}

/**
 * Whether a step stands open that never goes on: while its instance is rolled back, only handlers do.
 * @param {Row} row
 * @param {Head} [head]
 */
export function neverReturns(row, head) {
  return head?.status === "rollingBack" && row.key[0] !== "rollback" && ["waiting", "sleeping", "retrying"].includes(row.state);
}

/**
 * How a row says where its step stands.
 * @param {Row} row
 * @param {number} now
 * @param {Head} [head] of its instance
 * @returns {{icon: string, tone: string, text: string}}
 */
export function stepWords(row, now, head = undefined) {
  if (neverReturns(row, head)) return { icon: "cancelled", tone: "muted", text: "never returns: it is rolling back" };
  const said = ownWords(row, now);
  return row.abandoned && row.state !== "finished" ? { icon: "interrupted", tone: "orange", text: `${said.text} · still running in its thread` } : said;
}

/**
 * @param {Row} row
 * @param {number} now
 * @returns {{icon: string, tone: string, text: string}}
 */
function ownWords(row, now) {
  const { icon, word, tone } = STEP[row.state] ?? { icon: "queued", word: row.state, tone: "muted" };
  const attempt = row.attempt ?? 0;
  const tries = attempt > 1 || row.state === "retrying" ? `attempt ${attempt}${row.limit ? ` of ${row.limit}` : ""}` : "";
  const left = row.due ? duration(row.due - now, true) : "";
  if (row.key[0] === "rollback" && ROLLBACK[row.state]) return { icon: "rolling", tone, text: [ROLLBACK[row.state], tries].filter(Boolean).join(" · ") };
  if (row.unreached) return { icon: "replayed", tone: "muted", text: "not reached by the present code" };
  switch (row.state) {
    case "finished":
      if (row.stale) return { icon: "replayed", tone: "amber", text: "code changed" };
      if (row.replayed) return { icon: "replayed", tone, text: "from history" };
      return { icon, tone, text: tries ? `${word} · ${tries}` : word };
    case "retrying":
      return { icon, tone, text: [tries || word, left && `next in ${left}`].filter(Boolean).join(" · ") };
    case "sleeping":
      return { icon, tone, text: left ? `wakes in ${left}` : word };
    case "waiting":
      return { icon, tone, text: left ? `waiting · ${left} left` : word };
    case "failed":
      return { icon, tone, text: attempt > 1 ? `${word} after ${attempt} attempts` : word };
    default:
      return { icon, tone, text: tries ? `${word} · ${tries}` : word };
  }
}

/**
 * Why a step that has not finished has no output.
 * @param {Row} row
 * @param {Head} [head] of its instance
 */
export function noOutput(row, head) {
  if (neverReturns(row, head)) return "no output: it never returns, the instance is rolling back";
  const over = { failed: "it has failed", cancelled: "it was cancelled", interrupted: "it was interrupted" }[row.state];
  return over ? `no output: ${over}` : "no output yet";
}

/**
 * How long a step took, or has been at it.
 * @param {Row} row
 * @param {number} now
 */
export function stepTime(row, now) {
  if (!row.started) return "";
  if (row.ended) return duration(row.ended - row.started);
  return duration(now - row.started, true);
}

/** @param {StepKey} key */
export function stepName(key) {
  const [type, name, count, item] = key;
  const known = count > 1 ? `${name} #${count}` : name;
  const text = type === "rollback" ? `undo ${known}` : known;
  return item === null || item === undefined ? text : `${text}[${item}]`;
}

/**
 * How far it is, the items of maps counted as steps.
 * @param {Head} head
 * @returns {{done: number, total: number | null, running: number, retrying: number, failed: number}}
 */
export function workOf(head) {
  return head.work ?? head;
}

/**
 * The parts of the progress line, most important first.
 * @param {Head} head
 * @param {number | null} rate steps per second
 * @returns {string[]}
 */
export function progress(head, rate) {
  const finished = FINISHED.includes(head.status);
  const { done, total, retrying } = workOf(head);
  const all = total === null || done === total;
  const parts = [
    all
      ? `${thousands(done)} step${done === 1 ? "" : "s"}${total === null ? " so far" : ""}`
      : `${thousands(done)}/${thousands(total)} steps`,
  ];
  const counted = (/** @type {number} */ n, /** @type {string} */ what) => n > 0 && parts.push(`${thousands(n)} ${what}`);
  counted(head.failed, "failed");
  counted(head.failed_items ?? 0, head.failed_items === 1 ? "item failed" : "items failed");
  if (finished && head.rollback) parts.push(head.rollback === "complete" ? "rolled back" : `rollback ${head.rollback}`);
  if (!finished) {
    counted(retrying, "retrying");
    counted(head.waiting, "waiting");
  }
  counted(head.replayed, "from history");
  counted(head.unreached, "not reached by the present code");
  counted(head.stale ?? 0, "stale");
  if (!finished && rate !== null && head.status === "running" && !standsStill(head)) {
    parts.push(pace(rate));
    // What has failed for good is over, and how long people take nobody knows.
    const open = total === null ? 0 : total - done - workOf(head).failed - head.waiting;
    if (open >= 3) parts.push(`about ${duration((open / rate) * 1000)} left`);
  }
  return parts;
}

/**
 * Steps a second over the last minute; null while there is too little to go by.
 * @param {{at: number, done: number}[]} samples oldest first
 */
export function rateOf(samples) {
  if (samples.length < 2) return null;
  const first = samples[0];
  const last = samples[samples.length - 1];
  const seconds = (last.at - first.at) / 1000;
  const done = last.done - first.done;
  return seconds >= 3 && done >= 2 ? done / seconds : null;
}

/**
 * The samples with one more, those of the last minute.
 * @param {{at: number, done: number}[]} samples
 * @param {number} at
 * @param {number} done
 */
export function sampled(samples, at, done) {
  const last = samples[samples.length - 1];
  if (last && done < last.done) return [{ at, done }];
  if (last && at - last.at < 250) return samples;
  return [...samples.filter((sample) => at - sample.at <= 60000), { at, done }];
}

/**
 * The bar's segments as shares of the whole, in order.
 * @param {Head} head
 * @returns {{tone: string, share: number}[]}
 */
export function barShares(head) {
  const work = workOf(head);
  const open = work.running + work.retrying + work.failed + head.waiting;
  const total = Math.max(1, work.total ?? work.done + open);
  const replayed = Math.min(head.replayed, work.done);
  return [
    { tone: "replayed", share: replayed / total },
    { tone: "done", share: (work.done - replayed) / total },
    { tone: "failed", share: work.failed / total },
    { tone: "retrying", share: work.retrying / total },
    { tone: "running", share: standsStill(head) ? 0 : work.running / total },
    { tone: "waiting", share: head.waiting / total },
  ].filter((segment) => segment.share > 0);
}

/**
 * Which controls can work now, and for the others why not; an empty reason means that it works.
 * @param {Head} head
 * @returns {{pause: string, resume: string, terminate: string, restart: string, retry_now: string, shown: "pause" | "resume"}}
 */
export function controls(head) {
  const finished = FINISHED.includes(head.status);
  const interrupted = head.interrupted !== null && head.interrupted !== undefined;
  const ownerless = !finished && !head.here && (!head.owner || head.alive === false);
  const status = head.status;
  const word = statusWords(head).word.toLowerCase();
  const resumable = ["paused", "waitingForPause", "errored"].includes(status) || interrupted || ownerless;
  let pause = "";
  if (finished) pause = `nothing to pause: it is ${word}`;
  else if (status === "paused" || status === "waitingForPause") pause = `it is ${word} already`;
  else if (status === "rollingBack") pause = "a rollback can't be paused";
  return {
    pause,
    resume: resumable ? "" : finished ? `nothing to resume: it is ${word}` : "it is not paused",
    terminate: finished ? `nothing to stop: it is ${word}` : "",
    restart: status === "rollingBack" ? "it is rolling back; wait for its end" : "",
    retry_now: head.retrying > 0 && !finished && status !== "rollingBack" ? "" : "nothing waits for a retry",
    shown: resumable ? "resume" : "pause",
  };
}

/**
 * A first payload for the JSON box.
 * @param {any} schema
 * @param {number} [depth]
 * @param {any} [root]
 * @returns {any}
 */
export function skeleton(schema, depth = 0, root = schema) {
  if (schema === null || schema === undefined) return { approved: true };
  const found = typeof schema === "object" && depth <= 4 ? opened(schema, root) : null;
  if (!found) return null;
  const { part } = withoutNull(found, root);
  if (!part) return null;
  if ("default" in part) return part.default;
  if ("const" in part) return part.const;
  if (Array.isArray(part.enum) && part.enum.length) return part.enum[0];
  if (part.properties) {
    const whole = depth === 0 ? { ...root, ...found } : root;
    const needed = Array.isArray(part.required) ? part.required : [];
    // A secret that may be left out is: the default that the kernel has for it is not shown here.
    const asked = Object.entries(part.properties).filter(([name, inner]) => needed.includes(name) || !isSecret(opened(inner ?? {}, whole)));
    return Object.fromEntries(asked.map(([name, inner]) => [name, skeleton(inner ?? {}, depth + 1, whole)]));
  }
  const kinds = { boolean: false, integer: 0, number: 0, string: "", array: [], object: {} };
  return kinds[/** @type {keyof typeof kinds} */ (part.type)] ?? null;
}

/** Part of a JSON text, kept as it was written: a number that JavaScript would change, or what somebody has typed. */
export class Exact {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }
}

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/**
 * What a JSON text holds, each number that JavaScript would change as it is written.
 * @param {string} text
 * @returns {{ok: true, payload: any} | {ok: false, error: string}}
 */
export function readPayload(text) {
  if (!text.trim()) return { ok: true, payload: null };
  try {
    JSON.parse(text);
    const name = unique();
    const marked = text.replaceAll(TOKENS, (token) => (token[0] === '"' || String(Number(token)) === token ? token : `{"${name}":"${token}"}`));
    const restored = (/** @type {string} */ _name, /** @type {any} */ value) => (value !== null && typeof value === "object" && Object.hasOwn(value, name) ? new Exact(value[name]) : value);
    return { ok: true, payload: JSON.parse(marked, restored) };
  } catch (error) {
    return { ok: false, error: `not JSON: ${error instanceof Error ? error.message : error}` };
  }
}

/**
 * The JSON text of a value, with its exact parts as they are.
 * @param {any} value
 * @param {number} [indent]
 */
export function writePayload(value, indent = 0) {
  /** @type {string[]} */
  const parts = [];
  const name = unique();
  const marked = JSON.stringify(value, (_name, part) => (part instanceof Exact ? `${name}${parts.push(part.text) - 1}` : part), indent);
  return (marked ?? "null").replaceAll(new RegExp(`"${name}(\\d+)"`, "g"), (_whole, place) => parts[Number(place)]);
}

// ---------------------------------------------------------------------------------------------------------------- forms

/**
 * @typedef {object} Field one question of a form
 * @property {"bool" | "text" | "long" | "integer" | "number" | "choice" | "date" | "datetime" | "time" | "list" | "group" | "json"} kind
 * @property {string[]} path where its answer goes in the payload
 * @property {string} label
 * @property {string} hint
 * @property {boolean} required an answer is part of every payload
 * @property {"" | "null" | "omit"} unset what a switched off answer becomes; "" where it has no switch
 * @property {any} value what it begins with; undefined where there is nothing to begin with
 * @property {any[]} [choices]
 * @property {number} [min]
 * @property {number} [max]
 * @property {number | "any"} [step]
 * @property {number} [length]
 * @property {string} [pattern]
 * @property {boolean} [secret] what is typed is not shown
 * @property {boolean} [filled] a text that is never empty
 * @property {"text" | "integer" | "number"} [item] what a list is of
 * @property {Field[]} [fields] of a group
 */
/** @typedef {{fields: Field[], pair: string[] | null}} Form `pair`: the yes or no that Approve and Reject answer */

const YES_OR_NO = /^(is_?)?(approved?|accept(ed)?|ok|okay|confirm(ed)?|agreed?|yes|go|go_ahead|allow(ed)?)$/i;
const LONG_TEXT = 120;
/** Formats of a text that an empty one never has. */
const FILLED = /^(date|duration|decimal|uuid\d?|(idn-|name-)?email|(idn-)?hostname|ip(v4|v6|vany)?(address|network|interface)?|[iu]ri|multi-host-uri)$/;
/** @type {Record<string, string>} */
const WRITTEN = { duration: "a duration, such as PT90S, P1D or 1:30:00", decimal: "a decimal number", base64: "in base64" };

/**
 * The schema behind references, with what stands beside the reference.
 * @param {any} part
 * @param {any} root
 * @returns {any}
 */
function opened(part, root) {
  let at = part;
  for (let hops = 0; hops < 8 && at && typeof at === "object"; hops++) {
    const single = Array.isArray(at.allOf) && at.allOf.length === 1 ? at.allOf[0] : undefined;
    if (typeof at.$ref !== "string" && !single) return at;
    const [, place, name] = /^#\/(\$defs|definitions)\/(.+)$/.exec(at.$ref ?? "") ?? [];
    const found = single ?? (place ? root?.[place]?.[name.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined);
    if (!found || typeof found !== "object") return null;
    const { $ref: _ref, allOf: _all, ...beside } = at;
    at = { ...found, ...beside };
  }
  return at && typeof at === "object" ? at : null;
}

/**
 * A schema without its null, and whether it had one.
 * @param {any} part
 * @param {any} root
 * @returns {{part: any, nullable: boolean}}
 */
function withoutNull(part, root) {
  const several = part.anyOf ?? part.oneOf;
  if (Array.isArray(several)) {
    const rest = several.filter((one) => one?.type !== "null");
    const { anyOf: _any, oneOf: _one, ...beside } = part;
    if (rest.length === 1 && rest.length < several.length) {
      const inner = opened(rest[0], root);
      return { part: inner && { ...inner, ...beside }, nullable: true };
    }
    const constants = rest.map((one) => opened(one, root)).map((one) => (one && "const" in one ? [one.const] : one?.enum));
    if (constants.every(Array.isArray)) return { part: { ...beside, enum: constants.flat() }, nullable: rest.length < several.length };
  }
  if (Array.isArray(part.type) && part.type.includes("null")) {
    const types = part.type.filter((/** @type {string} */ type) => type !== "null");
    return { part: { ...part, type: types.length === 1 ? types[0] : types }, nullable: true };
  }
  if (Array.isArray(part.enum) && part.enum.includes(null) && part.enum.length > 1) {
    return { part: { ...part, enum: part.enum.filter((/** @type {any} */ one) => one !== null) }, nullable: true };
  }
  return { part, nullable: false };
}

/** @param {any} part */
function isSecret(part) {
  return part?.writeOnly === true || part?.format === "password" || [part?.anyOf, part?.oneOf].some((several) => Array.isArray(several) && several.some(isSecret));
}

/** @param {string} name */
function spoken(name) {
  return name.replaceAll(/[_-]+/g, " ").trim() || name;
}

/** @param {any} value */
function isNumber(value) {
  return (typeof value === "number" || value instanceof Exact) && Number.isFinite(Number(value));
}

/**
 * @param {any} schema of the part
 * @param {any} root
 * @param {string[]} path
 * @param {boolean} required
 * @param {any} given what the whole's default says of it
 * @returns {Field}
 */
function fieldOf(schema, root, path, required, given) {
  const whole = opened(schema, root) ?? {};
  const { part: found, nullable } = withoutNull(whole, root);
  const part = found ?? {};
  const value = given !== undefined ? given : whole.default;
  const label = typeof schema?.title === "string" ? schema.title : spoken(path[path.length - 1] ?? "answer");
  const described = typeof whole.description === "string" ? whole.description : "";
  /** @type {Field} */
  const field = { kind: "json", path, label, hint: described, required, unset: nullable ? "null" : "", value };
  if (!required && value === undefined) field.unset = "omit";
  Object.assign(field, kindOf(part, root, path, value));
  const written = WRITTEN[part.format] ?? WRITTEN[part.contentEncoding];
  if (field.kind === "text" && written) field.hint = [described, written].filter(Boolean).join(" · ");
  if (field.kind === "datetime") field.hint = [described, isNaive(value) ? "without a time zone" : "in this browser's time zone"].filter(Boolean).join(" · ");
  return field;
}

/**
 * A pattern that a field may check while somebody types: one that may take for ever is left to the kernel.
 * @param {unknown} pattern
 */
function tame(pattern) {
  return typeof pattern === "string" && pattern.length <= 200 && !/\)[*+?{]|\\[1-9]/.test(pattern) ? pattern : undefined;
}

/**
 * What kind of question a schema is.
 * @param {any} part
 * @param {any} root
 * @param {string[]} path
 * @param {any} value
 * @returns {Partial<Field>}
 */
function kindOf(part, root, path, value) {
  const choices = "const" in part ? [part.const] : part.enum;
  if (Array.isArray(choices) && choices.length && choices.length <= 500) return { kind: "choice", choices };
  switch (part.type) {
    case "boolean":
      return { kind: "bool" };
    case "integer":
    case "number":
      return { kind: part.type, secret: isSecret(part), ...rangeOf(part) };
    case "string": {
      const kinds = { date: "date", "date-time": "datetime", time: "time", "partial-time": "time" };
      const kind = /** @type {Field["kind"] | undefined} */ (kinds[/** @type {keyof typeof kinds} */ (part.format)]);
      if (kind) return { kind };
      if (isSecret(part)) return { kind: "text", length: part.maxLength, secret: true };
      const lines = typeof value === "string" && value.includes("\n");
      const long = lines || part.maxLength > LONG_TEXT || /^(textarea|multi-?line|markdown)$/.test(part.format ?? "");
      return { kind: long ? "long" : "text", length: part.maxLength, pattern: tame(part.pattern), filled: FILLED.test(part.format ?? "") };
    }
    case "array": {
      const item = opened(part.items ?? {}, root);
      const kinds = { string: "text", integer: "integer", number: "number" };
      const kind = item?.enum || item?.format ? undefined : kinds[/** @type {keyof typeof kinds} */ (item?.type)];
      const lines = Array.isArray(value) && value.some((one) => (typeof one === "object" && !(one instanceof Exact)) || String(one).includes("\n"));
      return kind && !lines ? { kind: "list", item: /** @type {Field["item"]} */ (kind) } : { kind: "json" };
    }
    case "object": {
      const names = Object.keys(part.properties ?? {});
      if (path.length !== 1 || !names.length || names.length > 12) return { kind: "json" };
      const needed = Array.isArray(part.required) ? part.required : [];
      const fields = names.map((name) => fieldOf(part.properties[name], root, [...path, name], needed.includes(name), value?.[name]));
      return fields.some(({ kind }) => kind === "group") ? { kind: "json" } : { kind: "group", fields };
    }
    default:
      return { kind: "json" };
  }
}

/**
 * Bounds and step of a number's control. Its arrows go from `min` in steps, to bounds that are themselves offered: both are
 * values that fit.
 * @param {any} part
 * @returns {{min: number | undefined, max: number | undefined, step: number | "any"}}
 */
function rangeOf(part) {
  const unit = isNumber(part.multipleOf) && part.multipleOf > 0 ? Number(part.multipleOf) : 0;
  const step = part.type === "integer" ? wholeStep(unit) : unit;
  const low = [[part.minimum, false], [part.exclusiveMinimum, true]].filter(([bound]) => isNumber(bound));
  const high = [[part.maximum, false], [part.exclusiveMaximum, true]].filter(([bound]) => isNumber(bound));
  const min = low.map(([bound, open]) => fitting(Number(bound), open, step, 1));
  const max = high.map(([bound, open]) => fitting(Number(bound), open, step, -1));
  return { min: min.length ? Math.max(...min) : undefined, max: max.length ? Math.min(...max) : undefined, step: step || "any" };
}

/**
 * The first value that fits inside a bound.
 * @param {number} bound
 * @param {boolean} open the bound is none itself
 * @param {number} step 0 for any value
 * @param {1 | -1} inwards
 */
function fitting(bound, open, step, inwards) {
  if (!step) return open ? tidy(bound + inwards * Math.max(1, Math.abs(bound)) * 1e-6) : bound;
  const exact = bound / step;
  const near = Math.round(exact);
  const isOne = Math.abs(exact - near) <= 1e-9 * Math.max(1, Math.abs(exact));
  if (isOne) return tidy((near + (open ? inwards : 0)) * step);
  return tidy((inwards > 0 ? Math.ceil(exact) : Math.floor(exact)) * step);
}

/**
 * The step between whole numbers that are multiples of a unit.
 * @param {number} unit 0 for any
 */
function wholeStep(unit) {
  for (let many = 1; unit && many <= 1000; many++) if (Number.isInteger(tidy(many * unit))) return tidy(many * unit);
  return 1;
}

/** @param {number} value without what binary fractions add to it */
function tidy(value) {
  return Math.abs(value) < 1e12 ? Number(value.toPrecision(12)) : value;
}

/**
 * The form that asks for what a JSON schema describes; null where only a JSON box can.
 * @param {any} schema
 * @returns {Form | null}
 */
export function formOf(schema) {
  if (schema === null || schema === undefined) {
    const path = ["approved"];
    return { fields: [{ kind: "bool", path, label: "approved", hint: "", required: true, unset: "", value: undefined }], pair: path };
  }
  const root = typeof schema === "object" ? opened(schema, schema) : null;
  if (!root) return null;
  const names = root.type === "object" ? Object.keys(root.properties ?? {}) : [];
  if (names.length > 30) return null;
  if (!names.length) {
    const field = fieldOf(schema, schema, [], true, undefined);
    if (field.kind === "json") return null;
    return { fields: [field], pair: field.kind === "bool" && !field.unset ? [] : null };
  }
  const needed = Array.isArray(root.required) ? root.required : [];
  const whole = { ...schema, ...root };
  const fields = names.map((name) => fieldOf(root.properties[name], whole, [name], needed.includes(name), root.default?.[name]));
  const bools = fields.filter(({ kind, unset }) => kind === "bool" && !unset);
  const asks = bools.filter(({ path }) => fields.length === 1 || YES_OR_NO.test(path[0]));
  const lone = asks.length === 1 ? asks[0] : undefined;
  return { fields, pair: lone ? lone.path : null };
}

/**
 * What stands in a control, as the payload will have it.
 * @param {Field} field
 * @param {any} raw text of the control; of a checkbox a bool, of choices the place of the one chosen
 * @returns {{ok: true, value: any} | {ok: false, error: string}}
 */
export function readField(field, raw) {
  const bad = (/** @type {string} */ error) => /** @type {const} */ ({ ok: false, error });
  const good = (/** @type {any} */ value) => /** @type {const} */ ({ ok: true, value });
  switch (field.kind) {
    case "bool":
      return good(Boolean(raw));
    case "choice": {
      const place = raw === "" || raw === null || raw === undefined ? -1 : Number(raw);
      return place in (field.choices ?? []) ? good(field.choices?.[place]) : bad("choose one");
    }
    case "integer":
    case "number":
      return readNumber(field.kind, String(raw));
    case "date":
      return raw ? good(String(raw)) : bad("choose a date");
    case "time":
      return raw ? good(readTime(field, String(raw))) : bad("choose a time");
    case "datetime":
      return raw ? good(readMoment(field, String(raw))) : bad("choose a date and a time");
    case "list": {
      if (Array.isArray(field.value) && field.value.length && raw === firstRaw(field)) return good(field.value);
      const lines = String(raw).split("\n");
      while (lines.length && !lines[lines.length - 1].trim()) lines.pop();
      if (field.item === "text") return good(lines);
      const items = lines.filter((line) => line.trim()).map((line) => readNumber(field.item ?? "number", line));
      const wrong = items.findIndex((item) => !item.ok);
      const found = items[wrong];
      return found && !found.ok ? bad(`line ${wrong + 1}: ${found.error}`) : good(items.map((item) => (item.ok ? item.value : null)));
    }
    case "json": {
      const read = readPayload(String(raw));
      return read.ok ? good(new Exact(String(raw).trim() || "null")) : bad(read.error);
    }
    default:
      return field.filled && !String(raw).trim() ? bad("an answer is missing") : good(String(raw));
  }
}

/**
 * @param {"integer" | "number" | string} kind
 * @param {string} raw
 * @returns {{ok: true, value: number | Exact} | {ok: false, error: string}}
 */
function readNumber(kind, raw) {
  const text = raw.trim();
  if (!text) return { ok: false, error: "a number is missing" };
  const value = Number(text);
  if (!Number.isFinite(value)) return { ok: false, error: `${short(text)} is not a number` };
  const asJson = String(value) !== text && /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(text);
  if (kind !== "integer") return { ok: true, value: asJson ? new Exact(text) : value };
  if (!Number.isInteger(value)) return { ok: false, error: `${short(text)} is not a whole number` };
  if (Number.isSafeInteger(value)) return { ok: true, value };
  const digits = /^([+-]?)0*(\d+)(?:\.0*)?$/.exec(text);
  return digits ? { ok: true, value: new Exact(digits[1].replace("+", "") + digits[2]) } : { ok: false, error: "too large a number to be sent exactly: write all of its digits" };
}

/**
 * What nobody has changed goes back as it came. What is written in place of a moment without a time zone has none either: the
 * kernel's zone is not this browser's, and which one was meant nobody knows here.
 * @param {Field} field
 * @param {string} raw
 */
function readMoment(field, raw) {
  const given = field.value;
  if (typeof given === "string" && withSeconds(raw) === withSeconds(firstRaw(field))) return given;
  return isNaive(given) ? withSeconds(raw) : withOffset(raw);
}

/**
 * The same for a time of day: one with a zone keeps it, since no date says what this browser's is.
 * @param {Field} field
 * @param {string} raw
 */
function readTime(field, raw) {
  const given = typeof field.value === "string" ? field.value : "";
  const seconds = (/** @type {string} */ text) => text.replace(/^\d\d:\d\d$/, "$&:00");
  if (given && seconds(raw) === seconds(firstRaw(field))) return given;
  return raw + (ZONE.exec(given)?.[0] ?? "");
}

const ZONE = /([zZ]|[+-]\d\d:?\d\d)$/;

/** @param {unknown} moment ISO 8601, or nothing */
function isNaive(moment) {
  return typeof moment === "string" && moment !== "" && !ZONE.test(moment);
}

/** @param {string} local as a control gives it: without seconds where they are 0 */
function withSeconds(local) {
  return local.replace(" ", "T").replace(/T\d\d:\d\d$/, "$&:00");
}

/** @param {string} text */
function short(text) {
  return text.length > 24 ? `${text.slice(0, 23)}…` : text;
}

/**
 * A local date and time as ISO 8601 with its offset.
 * @param {string} local "2026-12-01T10:00"
 */
export function withOffset(local) {
  const minutes = -new Date(local).getTimezoneOffset();
  if (!Number.isFinite(minutes)) return local;
  const pad = (/** @type {number} */ n) => String(Math.floor(Math.abs(n))).padStart(2, "0");
  return `${withSeconds(local)}${minutes < 0 ? "-" : "+"}${pad(minutes / 60)}:${pad(minutes % 60)}`;
}

/**
 * What a control shows at first, as its text (a checkbox: a bool; choices: the place of the one chosen).
 * @param {Field} field
 * @returns {any}
 */
export function firstRaw(field) {
  const { kind, value } = field;
  if (kind === "bool") return value === true;
  if (kind === "choice") {
    const place = (field.choices ?? []).findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
    return place >= 0 ? String(place) : field.choices?.length === 1 ? "0" : "";
  }
  if (kind === "json") return value === undefined ? "" : writePayload(value, 2);
  if (value === undefined || value === null) return "";
  if (kind === "list") return Array.isArray(value) ? value.join("\n") : "";
  if (kind === "datetime") return localInput(String(value));
  if (kind === "time") return /^\d\d:\d\d(:\d\d)?/.exec(String(value))?.[0] ?? "";
  return String(value);
}

/** @param {string} text ISO 8601 as `<input type=datetime-local>` takes it: in this browser's time zone */
function localInput(text) {
  if (isNaive(text)) return text.slice(0, 19);
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

/**
 * Put an answer at its place in a payload; `[]` is the payload itself.
 * @param {any} payload
 * @param {string[]} path
 * @param {any} value
 */
export function placed(payload, path, value) {
  if (!path.length) return value;
  const [name, ...rest] = path;
  const whole = payload && typeof payload === "object" ? payload : {};
  // A name such as __proto__ must become a plain property.
  Object.defineProperty(whole, name, {
    value: placed(Object.hasOwn(whole, name) ? whole[name] : undefined, rest, value),
    enumerable: true,
    configurable: true,
    writable: true,
  });
  return whole;
}

// ---------------------------------------------------------------------------------------------------------- rows and news

/**
 * The rows to draw: those in sight and some above and below.
 * @param {number} scrollTop
 * @param {number} height
 * @param {number} total
 * @returns {[number, number]}
 */
export function visibleRange(scrollTop, height, total) {
  const above = 8;
  const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - above);
  const last = Math.min(total, Math.ceil((scrollTop + height) / ROW_HEIGHT) + above);
  return [Math.min(first, last), last];
}

/**
 * What to ask of the kernel for these rows: a whole page where one is missing, the rows in sight where they are old.
 * @param {number} first
 * @param {number} last
 * @param {(index: number) => number | undefined} versionOf what version of the instance a known row is of
 * @param {number} version
 * @returns {{start: number, stop: number, missing: boolean} | null}
 */
export function toAsk(first, last, versionOf, version) {
  let old = false;
  for (let index = first; index < last; index++) {
    const known = versionOf(index);
    if (known === undefined) {
      const start = Math.max(0, Math.min(index, Math.floor((first + last - PAGE) / 2)));
      return { start, stop: start + PAGE, missing: true };
    }
    if (known < version) old = true;
  }
  return old ? { start: first, stop: Math.min(last, first + PAGE), missing: false } : null;
}

/**
 * Whether the panel may be believed, and what to say where it may not.
 * @param {object} link
 * @param {string | null} link.engine the engine that answered hello
 * @param {number} link.opened when the view was drawn
 * @param {number} link.news when anything came last
 * @param {string} link.kernel what the page knows of the kernel, "" for nothing
 * @param {boolean} link.other something came from another engine
 * @param {number} now
 * @returns {{live: boolean, grey: boolean, text: string}}
 */
export function freshness(link, now) {
  const since = `no news since ${moment(link.news, now)}`;
  if (link.kernel) return { live: false, grey: true, text: `${since}: the kernel was ${link.kernel}. Run the cell again.` };
  if (link.other) return { live: false, grey: true, text: `${since}: another engine answers. Run the cell again.` };
  if (now - link.news > SILENCE_MS) {
    return { live: false, grey: true, text: `${since}: kernel busy, stopped or restarted. Run the cell again.` };
  }
  if (link.engine === null) {
    const late = now - link.opened > ANSWER_MS;
    return { live: false, grey: false, text: late ? "connecting… the kernel is busy, or has restarted" : "connecting…" };
  }
  return { live: true, grey: false, text: "" };
}

/**
 * The bar of a group of steps, as shares of the whole, in order.
 * @param {Row} row
 * @returns {{tone: string, share: number}[]}
 */
export function groupShares(row) {
  const { counts = {}, total } = row;
  if (!total) return []; // of how many nobody knows yet
  const replayed = row.key[2] ? 0 : Math.min(Number(row.replayed ?? 0), counts.finished ?? 0);
  const of = (/** @type {number | undefined} */ count) => (count ?? 0) / total;
  return [
    { tone: "replayed", share: of(replayed) },
    { tone: "done", share: of((counts.finished ?? 0) - replayed) },
    { tone: "failed", share: of((counts.failed ?? 0) + (counts.interrupted ?? 0)) },
    { tone: "retrying", share: of(counts.retrying) },
    { tone: "running", share: of(counts.running) },
    { tone: "waiting", share: of((counts.waiting ?? 0) + (counts.sleeping ?? 0)) },
  ].filter((segment) => segment.share > 0);
}

/**
 * What a group of steps says of itself: how many are done, and beside it rate, time left, failures.
 * @param {Row} row
 * @returns {{count: string, note: string}}
 */
export function groupWords(row) {
  const { counts = {}, rate } = row;
  const total = row.total ?? 0;
  const done = counts.finished ?? 0;
  if (row.total === null) return { count: `${thousands(done)} so far`, note: [counts.failed ? `${thousands(counts.failed)} failed` : "", rate ? pace(rate) : ""].filter(Boolean).join(" · ") };
  const parts = [];
  const counted = (/** @type {number | undefined} */ n, /** @type {string} */ what) => n && parts.push(`${thousands(n)} ${what}`);
  counted(counts.failed, "failed");
  counted(row.gone, "gone from the list");
  counted(counts.retrying, "retrying");
  counted(counts.interrupted, "interrupted");
  counted(counts.waiting, "waiting");
  if (rate) parts.push(pace(rate));
  const open = total - done - (counts.failed ?? 0) - (counts.cancelled ?? 0);
  const left = rate ? (open / rate) * 1000 : 0;
  if (left >= 1000 && open > (counts.retrying ?? 0)) parts.push(`about ${duration(left)} left`); // a delay is no work
  if (!rate && row.replayed) parts.push(row.replayed === true ? "from history" : `${thousands(row.replayed)} from history`);
  return { count: done === total ? thousands(total) : `${thousands(done)}/${thousands(total)}`, note: parts.join(" · ") };
}

/**
 * Whether a row is a map itself, not one of its items.
 * @param {Row} row
 */
export function isMap(row) {
  return row.key[0] === "map" && row.key[3] === null;
}

/** @param {number} rate a second */
function pace(rate) {
  return rate >= 1 ? `${rate.toFixed(1)}/s` : `${(rate * 60).toFixed(rate * 60 < 10 ? 1 : 0)}/min`;
}

/**
 * How far a body says it is: its share where the whole is known, and words.
 * @param {[number, number | null, string] | undefined} progress
 * @returns {{share: number | null, text: string} | null}
 */
export function progressWords(progress) {
  if (!Array.isArray(progress)) return null;
  const [done, total, note] = progress;
  if (typeof done !== "number") return null;
  const share = typeof total === "number" && total > 0 ? Math.max(0, Math.min(1, done / total)) : null;
  const count = share === null ? thousands(done) : `${Math.floor(share * 100)}%`;
  return { share, text: note ? `${count} ${note}` : count };
}

// ------------------------------------------------------------------------------------------------------------- timeline

/**
 * The bars of one row: what ran or waited when, and the gaps between attempts.
 * @param {Row} row
 * @param {number} now
 * @returns {{from: number, to: number, kind: string, title: string}[]}
 */
export function spans(row, now) {
  if (!row.started) return [];
  const end = row.ended ?? now;
  if (!row.tries) {
    const kind = row.counts ? "group" : row.state;
    const found = [{ from: row.started, to: end, kind, title: duration(end - row.started, !row.ended) }];
    if (row.due && row.due > end) found.push({ from: end, to: row.due, kind: row.state === "retrying" ? "gap" : "ahead", title: `until ${moment(row.due, now)}` });
    return found;
  }
  const found = [];
  row.tries.forEach(([from, to, state], place) => {
    const until = to ?? now;
    found.push({ from, to: until, kind: state, title: `attempt ${(row.attempt ?? row.tries?.length ?? 0) - (row.tries?.length ?? 0) + place + 1}: ${duration(until - from)}` });
    const next = row.tries?.[place + 1]?.[0] ?? (row.state === "retrying" ? row.due : null);
    if (next && next > until) found.push({ from: until, to: next, kind: "gap", title: `${duration(next - until)} until the next attempt` });
  });
  return found;
}

/**
 * Where a span lies in a window, in percent; null outside of it.
 * @param {{from: number, to: number}} span
 * @param {[number, number]} window
 * @returns {{left: number, width: number} | null}
 */
export function placedIn(span, [start, end]) {
  const whole = Math.max(1, end - start);
  const left = Math.max(0, (span.from - start) / whole);
  const right = Math.min(1, (span.to - start) / whole);
  if (right < 0 || left > 1 || right < left) return null;
  return { left: left * 100, width: (right - left) * 100 };
}

const TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000]
  .concat([60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000].map((n) => n * 1000));

/**
 * Round times for the axis, counted from the beginning.
 * @param {[number, number]} window
 * @param {number} origin
 * @param {number} [most]
 * @returns {{at: number, text: string}[]}
 */
export function ticks([start, end], origin, most = 6) {
  const step = TICKS.find((one) => (end - start) / one <= most) ?? TICKS[TICKS.length - 1] * Math.ceil((end - start) / (TICKS[TICKS.length - 1] * most));
  const found = [];
  for (let at = origin + Math.ceil((start - origin) / step) * step; at <= end && found.length <= most; at += step) {
    found.push({ at, text: at === origin ? "0" : offset(at - origin) });
  }
  return found;
}

/** @param {number} ms a round number of something */
function offset(ms) {
  if (ms < 1000) return `${ms}ms`;
  if (ms < 60000) return `${ms / 1000}s`;
  return duration(ms).replace(/m00s$/, "m").replace(/h00m$/, "h").replace(/d 0h$/, "d");
}

/**
 * A window moved and zoomed, inside the whole.
 * @param {[number, number]} window
 * @param {[number, number]} whole
 * @param {number} factor below 1 to see less of it, larger
 * @param {number} shift in widths of the window
 * @param {number} around what keeps its place when zooming
 * @returns {[number, number] | null} null where all is seen
 */
export function zoomed([start, end], whole, factor, shift, around) {
  const width = Math.max(5, (end - start) * factor);
  if (width >= whole[1] - whole[0]) return null;
  const middle = Math.min(end, Math.max(start, around));
  const from = middle - (middle - start) * (width / Math.max(1, end - start)) + shift * width;
  const first = Math.max(whole[0], Math.min(whole[1] - width, from));
  return [first, first + width];
}

// ------------------------------------------------------------------------------------------------------- text of others

/**
 * A traceback as parts: the user's own frames to be read, those of libraries to be opened.
 * @param {string} text
 * @returns {{own: boolean, lines: string[]}[]}
 */
export function tracebackParts(text) {
  /** @type {{own: boolean, lines: string[]}[]} */
  const parts = [];
  let own = true;
  for (const line of text.split("\n")) {
    const file = /^\s*(?:\|\s*)*File "([^"]*)", line \d+/.exec(line);
    if (file) own = !/[\\/](site-packages|dist-packages)[\\/]|[\\/]lib[\\/]python\d|^<frozen /.test(file[1]);
    else if (/^\S/.test(line)) own = true;
    const last = parts[parts.length - 1];
    if (last && last.own === own) last.lines.push(line);
    else parts.push({ own, lines: [line] });
  }
  return parts;
}

/**
 * What a terminal would show of a text: colours left out, overwritten lines overwritten.
 * @param {string} text
 */
export function terminalText(text) {
  // eslint-disable-next-line no-control-regex
  const plain = text.replaceAll(/\u001b\[[0-9;?]*[A-Za-z]|\u001b\][^\u0007]*\u0007/g, "").replaceAll("\r\n", "\n");
  if (!plain.includes("\r")) return plain;
  return plain
    .split("\n")
    .map((line) => line.split("\r").filter(Boolean).pop() ?? "")
    .join("\n");
}

/**
 * @param {number} bytes
 */
export function sizeWords(bytes) {
  if (!(bytes >= 0)) return "";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let place = 0;
  let size = bytes;
  while (size >= 1000 && place < units.length - 1) {
    size /= 1000;
    place += 1;
  }
  return place === 0 ? `${thousands(bytes)} ${bytes === 1 ? "byte" : "bytes"}` : `${size.toFixed(size < 10 ? 1 : 0)} ${units[place]}`;
}

/**
 * Python code that gives a step's output in a cell.
 * @param {State} state
 * @param {StepKey} key
 */
export function codeFor(state, [, name, count, item]) {
  const instance = `nbflow.current_engine().get(${python(state.id)}, ${python(state.workflow)})`;
  if (item === null || item === undefined) return `${instance}.step(${python(name)}${count > 1 ? `, ${count}` : ""}).output`;
  const items = `${instance}.items(${python(name)}${count > 1 ? `, count=${count}` : ""})[1]`;
  return `next(item for item in ${items} if item.key.key == ${python(item)}).output`;
}

/** @param {string} text as a Python literal, which JSON's escapes are */
function python(text) {
  return JSON.stringify(text).replaceAll(/[\u007f-\uffff]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** What a kind of entry is called. @type {Record<string, string>} */
const ENTRY = {
  created: "created", claimed: "claimed by a kernel", released: "released", activated: "run called", pausing: "pause asked for",
  paused: "paused", resumed: "resumed", retried: "failed steps dropped", restarted: "restarted", terminated: "terminated",
  rolling_back: "rolling back", terminating: "rolling back before it is terminated", completed: "complete",
  errored: "errored", interrupted: "interrupted", event: "event",
  set_aside: "event set aside", started: "started", retrying: "attempt failed, another comes", finished: "finished", failed: "failed",
  cancelled: "cancelled",
};

/** @param {string} kind */
export function entryWords(kind) {
  const [type, what] = kind.includes(".") ? kind.split(".", 2) : ["", kind];
  const word = ENTRY[what] ?? what;
  return type && type !== "do" ? `${type} ${word}` : word;
}

/**
 * How an instance in the list of instances stands: in the words of its own panel's header.
 * @param {{status: string, interrupted: boolean, waiting?: number, sleeping?: Head["sleeping"]}} instance
 */
export function instanceWords(instance) {
  if (instance.interrupted && !FINISHED.includes(instance.status)) return { icon: "interrupted", word: "Interrupted", tone: "orange" };
  return lifeWords(instance);
}

/**
 * Why nothing can be restarted from the selected row; empty where it can.
 * @param {Row | null} row
 */
export function noRestartFrom(row) {
  if (!row) return "select a step in the list first";
  const [type, , count, item] = row.key;
  if (!count) return "several steps are selected: open the row and select one of them";
  if (type === "rollback") return "what is selected undoes a step: select that step";
  if (item !== null && type !== "map") return `what is selected ran inside ${item}: select that`;
  return "";
}

/**
 * @typedef {object} Output a stored preview, ready to be drawn
 * @property {"none" | "text" | "table" | "image" | "heat" | "tree" | "file"} kind
 * @property {string} caption
 * @property {string} [text]
 * @property {{name: string, type: string}[]} [columns]
 * @property {string[][]} [rows] with the index first, where there is one
 * @property {boolean} [indexed]
 * @property {string} [png] base64
 * @property {number[][]} [heat] 0…255
 * @property {any} [tree] what JSON holds
 */

/**
 * What can be drawn of a stored preview (`values/preview.py` says its shapes).
 * @param {any} preview
 * @returns {Output[]}
 */
export function outputs(preview) {
  if (preview === null || preview === undefined || typeof preview !== "object") return [{ kind: "none", caption: "no output" }];
  const parts = partsOf(preview);
  const { file } = preview;
  if (file && typeof file === "object") parts.push({ kind: "file", caption: String(file.uri ?? ""), text: [sizeWords(Number(file.size)), `SHA-256 ${file.hash ?? ""}`].join(" · ") });
  return parts;
}

/**
 * @param {any} preview
 * @returns {Output[]}
 */
function partsOf(preview) {
  const shape = Array.isArray(preview.shape) ? preview.shape.map(thousands).join(" × ") : "";
  switch (preview.kind) {
    case "table": {
      const columns = list(preview.columns).map((column) => ({ name: String(column?.name ?? ""), type: String(column?.dtype ?? "") }));
      const indexed = Array.isArray(preview.index);
      const rows = list(preview.head).map((row, place) => (indexed ? [preview.index[place], ...list(row)] : list(row)).map(cell));
      const cut = list(preview.shape);
      const more = [rows.length < cut[0] ? `first ${thousands(rows.length)} rows` : "", columns.length < cut[1] ? `first ${columns.length} columns` : ""];
      const titles = indexed ? [{ name: "", type: "" }, ...columns] : columns;
      const caption = [`table ${shape}`, ...more.filter(Boolean)].join(" · ");
      return [{ kind: "table", caption, columns: titles, rows, indexed }];
    }
    case "array": {
      const facts = ["min", "mean", "max"].filter((fact) => typeof preview[fact] === "number");
      const told = facts.map((fact) => `${fact} ${Number(preview[fact].toPrecision(4))}`);
      const sampled = preview.sampled && told.length ? ["of a part of it"] : [];
      const caption = [`array ${shape || "0-d"}`, String(preview.dtype ?? ""), ...told, ...sampled].join(" · ");
      const short = (/** @type {any} */ value) => (/^-?\d*\.\d{5,}(e[+-]?\d+)?$/i.test(cell(value)) ? String(Number(Number(value).toPrecision(5))) : cell(value));
      const rows = list(preview.head).map((row) => list(row).map(short));
      /** @type {Output[]} */
      const parts = [{ kind: "table", caption, columns: [], rows }];
      const scale = facts.length ? `${Number(preview.min?.toPrecision?.(4))} (light) to ${Number(preview.max?.toPrecision?.(4))} (dark)` : "low (light) to high (dark)";
      if (list(preview.heat).length) parts.splice(0, 1, { kind: "heat", caption, text: scale, heat: list(preview.heat).map(list) }, { ...parts[0], caption: "" });
      return parts;
    }
    case "image": {
      const caption = `picture ${preview.width} × ${preview.height}`;
      const whole = typeof preview.png === "string" && /^[A-Za-z0-9+/=]+$/.test(preview.png);
      return whole ? [{ kind: "image", caption, png: preview.png }] : [{ kind: "none", caption: `${caption}, too large to be shown here` }];
    }
    case "bytes":
      return [{ kind: "text", caption: `${thousands(Number(preview.size ?? 0))} bytes`, text: String(preview.head ?? "") }];
    case "json": {
      const caption = preview.truncated ? "the beginning of it" : "";
      const read = readPayload(String(preview.text ?? ""));
      if (read.ok && read.payload !== null && typeof read.payload === "object" && !(read.payload instanceof Exact)) return [{ kind: "tree", caption, tree: read.payload }];
      return [{ kind: "text", caption, text: String(preview.text ?? preview.line ?? "") }];
    }
    default: {
      const caption = preview.truncated ? "the beginning of it" : "";
      return [{ kind: "text", caption, text: String(preview.text ?? preview.line ?? "") }];
    }
  }
}

/** @param {any} value @returns {any[]} */
function list(value) {
  return Array.isArray(value) ? value : [];
}

/** @param {any} value */
function cell(value) {
  if (value instanceof Exact) return value.text;
  return value !== null && typeof value === "object" ? writePayload(value) : String(value ?? "");
}

// ------------------------------------------------------------------------------------------------------------------ DOM

/** Drawn on 16 × 16, stroked unless filled. @type {Record<string, {path: string, filled?: boolean}>} */
const ICONS = {
  queued: { path: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z" },
  running: { path: "M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9z", filled: true },
  retrying: { path: "M13 8a5 5 0 1 1-1.5-3.6M13 2.2v3h-3" },
  sleeping: { path: "M13 9.6A5.5 5.5 0 0 1 6.4 3a5.5 5.5 0 1 0 6.6 6.6z", filled: true },
  waiting: { path: "M4.5 2.5h7M4.5 13.5h7M5.5 2.5v2L8 8l2.5-3.5v-2M5.5 13.5v-2L8 8l2.5 3.5v2" },
  done: { path: "M3 8.6l3.2 3.2L13 4.8" },
  replayed: { path: "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2zM5.4 8.2l1.9 1.9 3.4-3.8" },
  failed: { path: "M4 4l8 8M12 4l-8 8" },
  interrupted: { path: "M9 1.5L3.5 9H8l-1 5.5L12.5 7H8z", filled: true },
  paused: { path: "M5.5 3.5v9M10.5 3.5v9" },
  stopped: { path: "M4 4h8v8H4z", filled: true },
  rolling: { path: "M6 3L3 6l3 3M3 6h6.5a3.5 3.5 0 0 1 0 7H6" },
  cancelled: { path: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM4.3 4.3l7.4 7.4" },
  resume: { path: "M5 3l8 5-8 5z", filled: true },
  down: { path: "M4 6l4 4 4-4" },
  right: { path: "M6 4l4 4-4 4" },
  left: { path: "M10 4L6 8l4 4" },
  copy: { path: "M6 6h7v7H6zM10 6V3H3v7h3" },
};

/**
 * @param {string} tag
 * @param {string} [className]
 * @param {string} [text]
 * @param {Record<string, string>} [attributes]
 */
function make(tag, className = "", text = "", attributes = {}) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** @param {string} name */
function makeIcon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "nbf-icon");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  setIcon(svg, name);
  return svg;
}

/**
 * @param {SVGElement} svg
 * @param {string} name
 */
function setIcon(svg, name) {
  if (svg.dataset.icon === name) return;
  const icon = ICONS[name] ?? ICONS.queued;
  svg.dataset.icon = name;
  svg.dataset.filled = String(icon.filled ?? false);
  svg.firstElementChild?.setAttribute("d", icon.path);
}

/**
 * @param {Element} node
 * @param {string} text
 */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * @param {Element} node
 * @param {string} name
 * @param {string | null} value null removes it
 */
function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/**
 * @param {HTMLElement} node
 * @param {boolean} shown
 */
function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * A button that is never `disabled`: it keeps the focus, and says why it does nothing.
 * @param {string} label
 * @param {string} [icon]
 * @param {string} [className]
 */
function makeButton(label, icon = "", className = "") {
  const button = make("button", `nbf-button ${className}`.trim(), "", { type: "button" });
  if (icon) button.append(makeIcon(icon));
  button.append(make("span", "", label));
  return /** @type {HTMLButtonElement} */ (button);
}

/**
 * @param {HTMLElement} button
 * @param {string} reason why it can't work, "" where it can
 */
function setReason(button, reason) {
  setAttribute(button, "aria-disabled", reason ? "true" : null);
  setAttribute(button, "title", reason || null);
}

let ids = 0;

/**
 * Text that no other view has. A counter would not do: this module is loaded anew for each widget, and ids and the names of
 * radios belong to the whole page; `crypto.randomUUID` is not there on plain http.
 */
function unique() {
  return Array.from(crypto.getRandomValues(new Uint32Array(3)), (number) => number.toString(36)).join("");
}

// ----------------------------------------------------------------------------------------------------------------- link

/** What this view says to the kernel and hears from it. */
class Link {
  /**
   * @param {any} model
   * @param {() => void} onChange something about the link itself is new
   */
  constructor(model, onChange) {
    this.model = model;
    this.onChange = onChange;
    /** @type {string | null} */
    this.engine = null;
    this.opened = this.news = Date.now();
    this.kernel = "";
    this.other = false;
    this.offset = 0;
    this.seq = 0;
    this.prefix = Math.random().toString(36).slice(2, 10);
    this.count = 0;
    /** @type {Map<string, {done: (answer: any) => void, late: ReturnType<typeof setTimeout>}>} */
    this.pending = new Map();
    this.said = 0;
    this.asked = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.hearing = undefined;
  }

  /** The kernel's clock, as near as messages tell. */
  now() {
    return Date.now() + this.offset;
  }

  hello() {
    this.asked = Date.now();
    this.ask({ type: "hello" }, (answer) => {
      if (!answer.ok || typeof answer.engine !== "string") return;
      this.engine = answer.engine;
      this.other = false;
      this.kernel = "";
      this.onChange();
    });
  }

  /**
   * Ask something; `done` gets the answer, also a late one; `late` is called once when none has come in 3 s.
   * @param {Record<string, any>} message
   * @param {(answer: any) => void} done
   * @param {() => void} [late]
   */
  ask(message, done, late = () => {}) {
    const id = `${this.prefix}-${++this.count}`;
    this.pending.set(id, { done, late: setTimeout(late, ANSWER_MS) });
    if (this.pending.size > 50) this.drop(/** @type {string} */ (this.pending.keys().next().value));
    this.send({ ...message, id });
  }

  /** @param {Record<string, any>} message */
  send(message) {
    try {
      this.model.send(message);
    } catch {
      // the comm is gone: silence says so after a while
    }
  }

  /** @param {string} id */
  drop(id) {
    const found = this.pending.get(id);
    if (found) clearTimeout(found.late);
    this.pending.delete(id);
    return found;
  }

  /**
   * Note that something came.
   * @param {any} message anything with `engine`, `now` and `seq`
   */
  hear(message) {
    this.news = Date.now();
    if (typeof message.now === "number") this.offset = message.now - Date.now();
    if (typeof message.engine === "string" && this.engine !== null && message.engine !== this.engine && !this.other) {
      this.other = true;
      this.hello();
    }
    if (typeof message.seq === "number") {
      this.seq = Math.max(this.seq, message.seq);
      this.acknowledge();
    }
  }

  /** Tell the kernel what has come, each 2 s at most: one answer stands for all before it. */
  acknowledge() {
    if (this.hearing !== undefined) return;
    const wait = Math.max(0, this.said + HEARD_MS - Date.now());
    this.hearing = setTimeout(() => {
      this.hearing = undefined;
      this.said = Date.now();
      this.send({ type: "heard", seq: this.seq });
    }, wait);
  }

  /** Ask whether anybody is there, when it has been silent for long. */
  tick() {
    const quiet = Date.now() - this.news > SILENCE_MS || this.engine === null || this.other;
    if (quiet && !document.hidden && Date.now() - this.asked > SILENCE_MS) this.hello();
  }

  close() {
    clearTimeout(this.hearing);
    for (const id of [...this.pending.keys()]) this.drop(id);
  }
}

// ---------------------------------------------------------------------------------------------------------------- hands

const CONTROLS = "button, input, select, textarea, label, summary";
const FOCUSABLE = "button, input, select, textarea, summary, [tabindex]";

/** Where the focus goes from what is gone, for an element or all inside of it. @type {WeakMap<Element, () => HTMLElement | null | undefined>} */
const successors = new WeakMap();

/** @param {Element | null | undefined} node */
function isShown(node) {
  return Boolean(node?.isConnected) && (node?.checkVisibility?.() ?? true);
}

/**
 * @typedef {object} Meaning what a press at some place means
 * @property {Element | null} control
 * @property {Element | null} row
 * @property {string} of the step or instance that it is about: rows are drawn again for others
 * @property {string} label
 */

/**
 * @param {unknown} target
 * @returns {Meaning}
 */
function meaning(target) {
  const node = target instanceof Element ? target : null;
  const found = node?.closest(CONTROLS) ?? null;
  const control = found instanceof HTMLLabelElement ? (found.control ?? found) : found;
  const about = /** @type {HTMLElement | null} */ (node?.closest("[data-of]") ?? null);
  const label = control?.getAttribute("aria-label") ?? control?.textContent ?? "";
  return { control, row: node?.closest(".nbf-row") ?? null, of: about?.dataset.of ?? "", label };
}

/**
 * @param {Meaning} a
 * @param {Meaning} b
 */
function sameMeaning(a, b) {
  if (a.of !== b.of || Boolean(a.control) !== Boolean(b.control)) return false;
  return a.control ? a.control === b.control || (a.of !== "" && a.label === b.label) : a.row === b.row;
}

/**
 * Keeps presses and the focus with what they were meant for, while the panel changes under them.
 *
 * A press counts for one control once: the second half of a double click and a held key do nothing to another control than the
 * one where they began, and what has taken the place under a resting pointer, or was given the focus, takes no press in its
 * first 0.6 s. When what has the focus is gone, its successor gets it, never the page.
 */
class Hands {
  /**
   * @param {HTMLElement} root
   * @param {() => HTMLElement} last where the focus goes when nothing is nearer
   */
  constructor(root, last) {
    this.root = root;
    this.last = last;
    /** @type {{x: number, y: number} | null} */
    this.at = null;
    /** @type {{x: number, y: number} | null} Where the pointer has come to rest. */
    this.rest = null;
    this.under = this.first = this.pressed = meaning(null);
    /** When that took the place of something else. */
    this.since = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.settling = undefined;
    /** @type {HTMLElement | null} */
    this.held = null;
    /** @type {HTMLElement[]} */
    this.path = [];
    /** What was given the focus when, and whether for an answer: the next question may come a moment later. */
    this.given = { node: /** @type {HTMLElement | null} */ (null), at: 0, answered: false };
    for (const kind of ["pointermove", "pointerdown"]) root.addEventListener(kind, (event) => this.moved(/** @type {PointerEvent} */ (event)), true);
    root.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.at = this.rest = null;
    });
    root.addEventListener("click", (event) => this.clicked(event), true);
    root.addEventListener("keydown", (event) => this.keyed(event), true);
    root.addEventListener("focusin", (event) => this.took(/** @type {HTMLElement} */ (event.target)));
    root.addEventListener("focusout", (event) => this.left(event));
    this.observer = new MutationObserver(() => this.look());
    this.observer.observe(root, { subtree: true, childList: true, attributes: true });
  }

  close() {
    this.observer.disconnect();
  }

  page() {
    return /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
  }

  /** @param {PointerEvent} event */
  moved(event) {
    this.at = { x: event.clientX, y: event.clientY };
    if (!this.rest || Math.hypot(this.at.x - this.rest.x, this.at.y - this.rest.y) > NEAR_PX) {
      this.rest = this.at;
      this.since = 0;
    }
    this.under = meaning(event.target);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = meaning(event.target);
    const now = Date.now();
    let stray = Boolean(target.control?.closest("[data-new]") && target.control.getAttribute("aria-disabled"));
    if (event.detail === 1) this.first = target;
    if (event.detail > 1) stray ||= !sameMeaning(target, this.first);
    if (event.detail > 0) stray ||= Boolean(target.control && this.rest && now - this.since < SETTLED_MS);
    else stray ||= Boolean(target.control && target.control === this.given.node && now - this.given.at < SETTLED_MS);
    if (stray && (target.control || target.row)) stop(event);
  }

  /** @param {KeyboardEvent} event */
  keyed(event) {
    if (event.key !== "Enter" && event.key !== " ") return;
    const target = meaning(event.target);
    if (event.target === this.given.node && !target.control && Date.now() - this.given.at < SETTLED_MS) stop(event);
    else if (!event.repeat) this.pressed = target;
    else if ((target.control?.matches("button") || !target.control) && !sameMeaning(target, this.pressed)) stop(event);
  }

  /** @param {HTMLElement} node */
  took(node) {
    this.held = node;
    this.path = [];
    for (let at = node.parentElement; at && at !== this.root; at = at.parentElement) this.path.push(at);
  }

  /** @param {FocusEvent} event */
  left(event) {
    const { held } = this;
    if (event.relatedTarget) return void (this.held = null);
    // Somebody has clicked beside it, unless it is gone or the whole window has lost the focus.
    queueMicrotask(() => {
      if (this.held === held && isShown(held) && this.page().activeElement !== held) this.held = null;
    });
  }

  /** Something of the panel has changed: is it still what the pointer rests on, and is what had the focus still there? */
  look() {
    if (this.at) {
      const under = meaning(this.within(this.page().elementFromPoint(this.at.x, this.at.y)));
      if (under.control && !sameMeaning(under, this.under)) this.unsettle();
      this.under = under;
    }
    const { held } = this;
    const active = this.page().activeElement;
    if (this.given.answered && active === this.given.node && Date.now() - this.given.at < LATE_MS) {
      const next = this.last();
      if (next !== active) this.give(next, true);
    }
    if (!held || isShown(held)) return;
    if (active && active !== held && active !== document.body && active !== document.documentElement) this.held = null;
    else this.pass();
  }

  /** What is under the pointer has just taken the place of something else: that is to be seen. */
  unsettle() {
    this.since = Date.now();
    clearTimeout(this.settling);
    this.root.setAttribute("data-settling", "");
    this.settling = setTimeout(() => this.root.removeAttribute("data-settling"), SETTLED_MS);
  }

  /** @param {Element | null} node */
  within(node) {
    return node && this.root.contains(node) ? node : null;
  }

  /** Give the focus on. */
  pass() {
    const next = this.successor();
    const answered = this.path.some((node) => node.matches(".nbf-banner"));
    this.held = null;
    if (next) this.give(next, answered && next === this.last());
  }

  /**
   * @param {HTMLElement} node
   * @param {boolean} answered
   */
  give(node, answered) {
    node.focus({ preventScroll: true });
    this.given = { node, at: Date.now(), answered };
  }

  /** @returns {HTMLElement | null} */
  successor() {
    const lost = /** @type {HTMLElement} */ (this.held);
    for (const node of [lost, ...this.path]) {
      const next = successors.get(node)?.();
      if (isShown(next)) return next ?? null;
    }
    const was = meaning(lost);
    for (const inside of this.path.filter(isShown)) {
      const others = /** @type {HTMLElement[]} */ ([...inside.querySelectorAll(FOCUSABLE)]).filter((node) => isShown(node) && node.tabIndex >= 0);
      const again = others.find((node) => node.tagName === lost.tagName && meaning(node).label === was.label && meaning(node).of === was.of);
      const next = again ?? (inside.tabIndex >= 0 ? inside : others[0]);
      if (next) return next;
    }
    return isShown(this.root) ? this.last() : null;
  }
}

/** @param {Event} event */
function stop(event) {
  event.preventDefault();
  event.stopImmediatePropagation();
}

// --------------------------------------------------------------------------------------------------------- parts of the page

/** One line a person hears: polite at most each 2 s, assertive at once. */
class Speaker {
  constructor() {
    this.polite = make("div", "nbf-spoken", "", { "aria-live": "polite" });
    this.assertive = make("div", "nbf-spoken", "", { "aria-live": "assertive" });
    this.last = 0;
    this.loud = "";
  }

  /** @param {string} text */
  say(text) {
    if (Date.now() - this.last < SPOKEN_MS || this.polite.textContent === text) return;
    this.last = Date.now();
    this.polite.textContent = text;
  }

  /** @param {string} text "" for nothing of the kind any more */
  shout(text) {
    if (text === this.loud) return;
    this.loud = text;
    this.assertive.textContent = text;
  }
}

/**
 * @typedef {object} Panel what the parts share
 * @property {Link} link
 * @property {() => State} state
 * @property {() => string} unheard why no click can work now, "" where one can
 * @property {(text: string, tone?: string) => void} notice
 * @property {(id: string) => string} uid
 * @property {() => HTMLElement} next what is to be answered next, else the list
 * @property {() => void} showWaits all open waits, in the list
 */

/**
 * Send a click and show what becomes of it.
 * @param {Panel} panel
 * @param {HTMLElement} button
 * @param {Record<string, any>} message
 * @param {(answer: any) => void} [done]
 */
function click(panel, button, message, done = () => {}) {
  if (button.getAttribute("aria-disabled") === "true") {
    panel.notice(button.title);
    return;
  }
  const label = /** @type {HTMLElement} */ (button.querySelector("span"));
  const text = label.textContent ?? "";
  const restore = () => {
    delete button.dataset.sending;
    setText(label, text);
    setReason(button, "");
  };
  button.dataset.sending = "true";
  setText(label, "sending…");
  setReason(button, "sent; waiting for the kernel's answer");
  panel.notice("");
  const late = () => {
    restore();
    panel.notice("No answer from the kernel: busy, or restarted. If restarted, run the cell again.");
  };
  const answered = (/** @type {any} */ answer) => {
    restore();
    panel.notice(String((answer.ok ? answer.note : answer.error) ?? ""));
    done(answer);
  };
  panel.link.ask({ ...message, engine: panel.link.engine ?? "" }, answered, late);
}

/** A question in the panel itself, in place of a dialog: text, a button for each answer, and a way out. */
class Strip {
  /**
   * @param {HTMLElement} opener the button that opens it
   * @param {string} label
   * @param {() => void} onOpen
   */
  constructor(opener, label, onOpen) {
    this.opener = opener;
    this.onOpen = onOpen;
    this.root = make("div", "nbf-confirm", "", { role: "group", "aria-label": label });
    this.root.hidden = true;
    this.question = make("div", "nbf-question");
    this.answers = make("div", "nbf-answers");
    this.root.append(this.question, this.answers);
    opener.setAttribute("aria-expanded", "false");
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.open(false);
      event.stopPropagation();
    });
  }

  /** @param {boolean} open */
  open(open) {
    if (open === !this.root.hidden) return;
    const held = this.root.contains(document.activeElement);
    show(this.root, open);
    this.opener.setAttribute("aria-expanded", String(open));
    if (open) {
      this.onOpen();
      /** @type {HTMLElement | null} */ (this.root.querySelector("button, input"))?.focus();
    } else if (held) this.opener.focus();
  }
}

/** Name, status, controls, progress. */
class Header {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    /** @type {{at: number, done: number}[]} */
    this.samples = [];
    this.root = make("header", "nbf-header");
    this.workflow = make("span", "nbf-workflow");
    this.id = make("span", "nbf-id");
    const title = make("div", "nbf-title");
    title.append(this.workflow, this.id);
    this.icon = makeIcon("queued");
    this.word = make("span", "nbf-word");
    this.clock = make("span", "nbf-clock");
    this.status = make("div", "nbf-status");
    this.status.append(this.icon, this.word, this.clock);
    this.makeControls();
    this.counts = make("div", "nbf-counts");
    this.code = make("div", "nbf-same");
    this.params = make("div", "nbf-params");
    this.bar = make("div", "nbf-bar", "", { role: "progressbar", "aria-label": "Steps done", "aria-valuemin": "0" });
    const top = make("div", "nbf-top");
    top.append(title, this.status, this.buttons);
    const line = make("div", "nbf-line");
    line.append(this.counts, this.code, this.params);
    this.root.append(top, this.resuming.root, this.stopping.root, this.restarting.strip.root, line, this.bar);
  }

  makeControls() {
    const { panel } = this;
    this.buttons = make("div", "nbf-controls", "", { role: "group", "aria-label": "Controls" });
    this.pause = makeButton("Pause", "paused");
    this.resume = makeButton("Resume", "resume");
    this.retry = makeButton("Retry now", "retrying");
    this.stop = makeButton("Stop", "stopped");
    this.restart = makeButton("Restart", "rolling");
    for (const menu of [this.stop, this.restart]) menu.append(makeIcon("down"));
    this.close = makeButton("", "failed", "nbf-quiet nbf-cross");
    this.close.setAttribute("aria-label", "Close the panel; the line above stays");
    this.close.title = "close; the line above stays";
    this.buttons.append(this.retry, this.pause, this.resume, this.stop, this.restart, this.close);
    for (const [button, control] of /** @type {const} */ ([
      [this.pause, "pause"],
      [this.retry, "retry_now"],
    ])) {
      button.addEventListener("click", () => click(panel, button, { type: "command", control }));
    }
    const other = () => [this.pause, this.resume].find(isShown);
    for (const button of [this.pause, this.resume, this.retry]) successors.set(button, other);
    const alone = (/** @type {Strip} */ opened) => [this.stopping, this.restarting.strip, this.resuming].forEach((strip) => strip !== opened && strip.open(false));
    this.stopping = new Strip(this.stop, "Stop", () => alone(this.stopping));
    this.restarting = new RestartMenu(panel, this.restart, () => alone(this.restarting.strip));
    this.resuming = new Strip(this.resume, "Resume", () => alone(this.resuming));
    const resume = (/** @type {HTMLElement} */ button) =>
      click(panel, button, { type: "command", control: "resume" }, (answer) => answer.ok && this.resuming.open(false));
    this.resume.addEventListener("click", () => {
      const asks = panel.state().head.undone && this.resume.getAttribute("aria-disabled") !== "true";
      if (asks) this.resuming.open(Boolean(this.resuming.root.hidden));
      else resume(this.resume);
    });
    this.goOn = makeButton("Resume", "", "nbf-danger");
    this.goOn.addEventListener("click", () => resume(this.goOn));
    const leave = makeButton("Cancel");
    leave.addEventListener("click", () => this.resuming.open(false));
    this.resuming.answers.append(this.goOn, leave);
    this.terminate = makeButton("Terminate", "", "nbf-danger");
    this.rollback = makeButton("Terminate and roll back", "", "nbf-reject");
    const keep = makeButton("Keep it");
    keep.addEventListener("click", () => this.stopping.open(false));
    for (const [button, control] of /** @type {const} */ ([
      [this.terminate, "terminate"],
      [this.rollback, "terminate_and_roll_back"],
    ])) {
      button.addEventListener("click", () =>
        click(panel, button, { type: "command", control }, (answer) => answer.ok && this.stopping.open(false)),
      );
    }
    this.stopping.answers.append(this.terminate, this.rollback, keep);
    for (const [button, strip] of /** @type {const} */ ([
      [this.stop, this.stopping],
      [this.restart, this.restarting.strip],
    ])) {
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") panel.notice(button.title);
        else strip.open(Boolean(strip.root.hidden));
      });
    }
  }

  /** @param {number} now */
  update(now) {
    const state = this.panel.state();
    const { head } = state;
    setText(this.workflow, state.workflow);
    setText(this.id, state.id);
    setAttribute(this.id, "title", state.id);
    const work = workOf(head);
    this.samples = sampled(this.samples, now, work.done);
    setText(this.counts, progress(head, rateOf(this.samples)).join(" · "));
    const same = head.same === true ? "code as in the cell" : head.same === false ? "code changed since it ran" : "";
    setText(this.code, same);
    this.code.dataset.tone = head.same === false ? "amber" : "muted";
    setText(this.params, state.params && state.params !== "{}" && state.params !== "null" ? `params ${state.params}` : "");
    setAttribute(this.params, "title", state.params || null);
    drawShares(this.bar, barShares(head));
    setAttribute(this.bar, "aria-valuemax", work.total === null ? null : String(work.total));
    setAttribute(this.bar, "aria-valuenow", String(work.done));
    const { icon, word, tone } = statusWords(head);
    setIcon(this.icon, icon);
    setText(this.word, word);
    this.status.dataset.tone = tone;
    this.updateControls(head);
    setText(this.stopping.question, `Terminate ${state.id}? What runs is dropped, nothing more starts. Rolling back undoes finished steps, the last first.`);
    this.tick(now);
  }

  /** @param {Head} head */
  updateControls(head) {
    const can = controls(head);
    const unheard = this.panel.unheard();
    show(this.pause, can.shown === "pause");
    show(this.resume, can.shown === "resume");
    show(this.retry, can.retry_now === "");
    for (const [button, reason] of /** @type {const} */ ([
      [this.pause, can.pause],
      [this.resume, can.resume],
      [this.goOn, can.resume],
      [this.retry, can.retry_now],
      [this.stop, can.terminate],
      [this.terminate, can.terminate],
      [this.rollback, can.terminate],
      [this.restart, can.restart],
    ])) {
      if (button && !button.dataset.sending) setReason(button, unheard || reason);
    }
    if (can.terminate) this.stopping.open(false);
    if (!head.undone) this.resuming.open(false);
    setAttribute(this.resume, "aria-expanded", head.undone ? String(!this.resuming.root.hidden) : null);
    setText(this.resuming.question, `Resume ${this.panel.state().id}? ${head.undone ?? ""}.`);
    this.restarting.update(unheard || can.restart);
  }

  /** @param {number} now */
  tick(now) {
    setText(this.clock, elapsed(this.panel.state().head, now));
  }
}

/** Where to restart from, and what that keeps and runs again. */
class RestartMenu {
  /**
   * @param {Panel} panel
   * @param {HTMLElement} opener
   * @param {() => void} onOpen
   */
  constructor(panel, opener, onOpen) {
    this.panel = panel;
    /** @type {Row | null} */
    this.row = null;
    this.reason = noRestartFrom(null);
    this.since = "start";
    this.plan = make("div", "nbf-plan", "", { role: "status" });
    this.strip = new Strip(opener, "Restart", () => {
      onOpen();
      this.choose(this.row ? "step" : "start");
    });
    const id = panel.uid("since");
    const radios = make("div", "nbf-radios", "", { role: "radiogroup", "aria-label": "Restart from" });
    /** @type {Record<string, {box: HTMLInputElement, text: HTMLElement, label: HTMLElement}>} */
    this.choices = {};
    for (const [since, words] of [["start", "from the start"], ["step", "from the selected step"], ["stale", "from the first stale step"]]) {
      const label = make("label", "nbf-radio");
      const box = /** @type {HTMLInputElement} */ (make("input", "", "", { type: "radio", name: id, value: since }));
      const text = make("span", "", words);
      label.append(box, text);
      radios.append(label);
      box.addEventListener("change", () => this.choose(since));
      this.choices[since] = { box, text, label };
    }
    this.go = makeButton("Restart", "", "nbf-danger");
    const cancel = makeButton("Cancel");
    cancel.addEventListener("click", () => this.strip.open(false));
    this.go.addEventListener("click", () =>
      click(panel, this.go, { type: "restart", ...this.asked() }, (answer) => answer.ok && this.strip.open(false)),
    );
    this.strip.question.append(radios, this.plan);
    this.strip.answers.append(this.go, cancel);
  }

  asked() {
    return { since: this.since, key: this.since === "step" ? (this.row?.key ?? null) : null };
  }

  /**
   * Which step "from the selected step" means.
   * @param {Row | null} row
   */
  select(row) {
    this.reason = noRestartFrom(row);
    this.row = this.reason ? null : row;
    if (!this.strip.root.hidden) this.choose(this.row ? "step" : this.since === "step" ? "start" : this.since);
  }

  /** @param {string} since */
  choose(since) {
    this.since = since;
    const stale = Number(this.panel.state().head.stale ?? 0);
    setText(this.choices.step.text, this.row ? `from ${stepName(this.row.key)}` : "from the selected step");
    for (const [name, { box, label }] of Object.entries(this.choices)) {
      const reason = name === "step" ? this.reason : name === "stale" && !stale ? "no step is stale" : "";
      box.disabled = reason !== "";
      box.checked = name === since;
      label.title = reason;
      label.classList.toggle("nbf-off", reason !== "");
    }
    setText(this.plan, "…");
    const asked = this.asked();
    this.panel.link.ask(
      { type: "plan", ...asked },
      (answer) => {
        if (asked.since !== this.since || JSON.stringify(asked.key) !== JSON.stringify(this.asked().key)) return;
        setText(this.plan, String(answer.ok ? answer.plan.words : answer.error));
      },
      () => setText(this.plan, "No answer from the kernel yet: busy, or restarted."),
    );
  }

  /** @param {string} reason */
  update(reason) {
    if (!this.go.dataset.sending) setReason(this.go, reason);
  }
}

/**
 * @param {HTMLElement} bar
 * @param {{tone: string, share: number}[]} shares
 */
function drawShares(bar, shares) {
  while (bar.children.length > shares.length) bar.lastElementChild?.remove();
  while (bar.children.length < shares.length) bar.append(make("div"));
  shares.forEach(({ tone, share }, place) => {
    const segment = /** @type {HTMLElement} */ (bar.children[place]);
    if (segment.dataset.part !== tone) segment.dataset.part = tone;
    const width = `${share * 100}%`;
    if (segment.style.width !== width) segment.style.width = width;
  });
}

/** The controls of one form, and what is wrong with their answers. */
class FormView {
  /**
   * @param {Panel} panel
   * @param {Form} form
   * @param {string} name of the wait: what the fields belong to
   */
  constructor(panel, form, name) {
    this.panel = panel;
    this.form = form;
    this.root = make("div", "nbf-form", "", { role: "group", "aria-label": `Answer to ${name}` });
    /** @type {{field: Field, raw: () => any, isSet: () => boolean, control: HTMLElement, problem: HTMLElement}[]} */
    this.parts = [];
    this.problem = make("div", "nbf-problem", "", { role: "alert" });
    for (const field of form.fields) if (!this.isPair(field)) this.root.append(this.makeField(field));
    this.root.append(this.problem);
    show(this.root, this.parts.length > 0);
  }

  /** @param {Field} field */
  isPair(field) {
    return this.form.pair !== null && JSON.stringify(field.path) === JSON.stringify(this.form.pair);
  }

  /**
   * @param {Field} field
   * @returns {HTMLElement}
   */
  makeField(field) {
    if (field.kind === "group") return this.makeGroup(field);
    const id = this.panel.uid(`field-${++ids}`);
    const root = make("div", `nbf-field nbf-${field.kind}-field`);
    const { control, raw, enable } = makeControl(field, id);
    const label = make(field.kind === "choice" && control.tagName !== "SELECT" ? "span" : "label", "nbf-field-label", field.label, { id: `${id}-label` });
    if (label.tagName === "LABEL") label.setAttribute("for", id);
    else control.setAttribute("aria-labelledby", label.id);
    const problem = make("div", "nbf-problem", "", { id: `${id}-problem` });
    const top = make("div", "nbf-field-top");
    const { isSet, node } = this.makeSwitch(field, enable);
    if (field.kind === "bool") top.append(control, label);
    else top.append(label);
    if (node) top.append(node);
    root.append(top);
    if (field.kind !== "bool") root.append(control);
    if (field.hint) root.append(make("div", "nbf-hint", field.hint, { id: `${id}-hint` }));
    root.append(problem);
    control.setAttribute("aria-describedby", field.hint ? `${id}-hint ${problem.id}` : problem.id);
    this.parts.push({ field, raw, isSet, control, problem });
    return root;
  }

  /**
   * @param {Field} field
   * @param {(on: boolean) => void} enable
   * @returns {{isSet: () => boolean, node: HTMLElement | null}}
   */
  makeSwitch(field, enable) {
    if (!field.unset) return { isSet: () => true, node: null };
    const node = make("label", "nbf-switch");
    const box = /** @type {HTMLInputElement} */ (make("input", "", "", { type: "checkbox", role: "switch", "aria-label": `set ${field.label}` }));
    box.checked = field.value !== undefined && field.value !== null;
    enable(box.checked);
    box.addEventListener("change", () => enable(box.checked));
    node.append(box, make("span", "", "set"));
    return { isSet: () => box.checked, node };
  }

  /** @param {Field} field */
  makeGroup(field) {
    const root = make("fieldset", "nbf-group");
    const title = make("legend", "nbf-field-label", field.label);
    const inner = make("div", "nbf-form");
    const { isSet, node } = this.makeSwitch(field, (on) => show(inner, on));
    if (node) title.append(node);
    for (const one of field.fields ?? []) inner.append(this.makeField(one));
    const problem = make("div", "nbf-problem");
    root.append(title, inner, problem);
    this.parts.push({ field, raw: () => null, isSet, control: root, problem });
    return root;
  }

  /**
   * The payload, or null after saying at the fields what is wrong.
   * @param {boolean} [approved] what the pair says, where there is one
   * @returns {{payload: any} | null}
   */
  read(approved) {
    this.tell([]);
    /** @type {any} */
    let payload = this.form.fields.length === 1 && !this.form.fields[0].path.length ? undefined : {};
    if (this.form.pair !== null) payload = placed(payload, this.form.pair, approved);
    const off = this.parts.filter(({ field, isSet }) => field.kind === "group" && !isSet()).map(({ field }) => field.path[0]);
    let first = null;
    for (const { field, raw, isSet, control, problem } of this.parts) {
      if (field.path.length > 1 && off.includes(field.path[0])) continue;
      if (!isSet()) {
        if (field.unset === "null") payload = placed(payload, field.path, null);
        continue;
      }
      if (field.kind === "group") {
        payload = placed(payload, field.path, payload?.[field.path[0]] ?? {});
        continue;
      }
      const read = readField(field, raw());
      if (read.ok) payload = placed(payload, field.path, read.value);
      else {
        mark(control, problem, read.error);
        first ??= control;
      }
    }
    if (first) focusFirst(first);
    return first ? null : { payload };
  }

  /**
   * Show what Python finds wrong, each at its field, the rest below.
   * @param {[string[], string][]} problems
   */
  tell(problems) {
    for (const { control, problem } of this.parts) mark(control, problem, "");
    const rest = [];
    let first = null;
    for (const [path, text] of problems) {
      const fits = this.parts.filter(({ field }) => field.path.every((name, place) => name === path[place]));
      const part = fits.sort((a, b) => b.field.path.length - a.field.path.length)[0];
      if (!part || !part.control.checkVisibility?.()) rest.push(path.length ? `${path.join(".")}: ${text}` : text);
      else {
        mark(part.control, part.problem, text);
        first ??= part.control;
      }
    }
    setText(this.problem, rest.join("; "));
    if (first) focusFirst(first);
  }

  /** @returns {HTMLElement | undefined} */
  first() {
    return this.parts.find(({ control, field }) => field.kind !== "group" && !control.hasAttribute("disabled"))?.control;
  }
}

/**
 * @param {HTMLElement} control
 * @param {HTMLElement} problem
 * @param {string} text
 */
function mark(control, problem, text) {
  setText(problem, text);
  setAttribute(control, "aria-invalid", text ? "true" : null);
}

/** @param {HTMLElement} control */
function focusFirst(control) {
  const inner = /** @type {HTMLElement | null} */ (control.querySelector("input, textarea, select"));
  (inner ?? control).focus();
}

/**
 * @param {Field} field
 * @param {string} id
 * @returns {{control: HTMLElement, raw: () => any, enable: (on: boolean) => void}}
 */
function makeControl(field, id) {
  const first = firstRaw(field);
  if (field.kind === "choice" && (field.choices?.length ?? 0) <= 4) return makeRadios(field, id, first);
  const tags = { choice: "select", long: "textarea", list: "textarea", json: "textarea" };
  const control = /** @type {HTMLInputElement} */ (make(tags[/** @type {keyof typeof tags} */ (field.kind)] ?? "input", "", "", { id }));
  const types = { bool: "checkbox", integer: "number", number: "number", date: "date", datetime: "datetime-local", time: "time" };
  if (control.tagName === "INPUT") control.type = types[/** @type {keyof typeof types} */ (field.kind)] ?? "text";
  else if (control.tagName === "TEXTAREA") control.setAttribute("rows", field.kind === "list" ? "3" : "4");
  if (control.tagName !== "SELECT") control.setAttribute("spellcheck", "false");
  for (const [name, value] of [["min", field.min], ["max", field.max], ["step", field.step], ["maxlength", field.length]]) {
    if (value !== undefined && value !== null) control.setAttribute(String(name), String(value));
  }
  if (field.kind === "datetime" || field.kind === "time") control.step = "1";
  if (field.secret) {
    control.type = "password";
    control.autocomplete = "new-password"; // none that the browser keeps for this page
  }
  if (field.kind === "integer" && String(first).length > 10) control.style.minWidth = `${String(first).length + 5}ch`; // all of its digits
  if (field.kind === "list") control.placeholder = "one a line";
  if (field.kind === "choice") {
    if (first === "") control.append(make("option", "", "choose…", { value: "" }));
    (field.choices ?? []).forEach((choice, place) => control.append(make("option", "", cell(choice), { value: String(place) })));
  }
  if (field.kind === "bool") control.checked = first;
  else control.value = first;
  const enable = (/** @type {boolean} */ on) => void (control.disabled = !on);
  return { control, raw: () => (field.kind === "bool" ? control.checked : control.value), enable };
}

/**
 * @param {Field} field
 * @param {string} id
 * @param {string} first
 */
function makeRadios(field, id, first) {
  const control = make("div", "nbf-radios", "", { role: "radiogroup", id });
  const boxes = (field.choices ?? []).map((choice, place) => {
    const label = make("label", "nbf-radio");
    const box = /** @type {HTMLInputElement} */ (make("input", "", "", { type: "radio", name: id, value: String(place) }));
    box.checked = String(place) === first;
    label.append(box, make("span", "", cell(choice)));
    control.append(label);
    return box;
  });
  const enable = (/** @type {boolean} */ on) => boxes.forEach((box) => void (box.disabled = !on));
  return { control, raw: () => boxes.find((box) => box.checked)?.value ?? "", enable };
}

/** One open wait: what is asked, until when, and the form or the buttons that answer it. */
class Banner {
  /**
   * @param {Panel} panel
   * @param {Wait} wait
   */
  constructor(panel, wait) {
    this.panel = panel;
    this.wait = wait;
    this.root = make("section", "nbf-banner", "", { "aria-label": `Waiting for you: ${wait.name}` });
    /** Somebody has begun to fill it in: it stays where it is, whatever is due before it. */
    this.begun = false;
    this.root.addEventListener("input", () => (this.begun = true));
    this.left = make("span", "nbf-left");
    const first = make("div", "nbf-asks");
    const event = make("code", "nbf-event", wait.event);
    event.title = "event type";
    first.append(makeIcon("waiting"), make("span", "nbf-label", "Waiting for you"), make("span", "nbf-name", stepName(["wait", wait.name, wait.count, null])), event, this.left);
    this.root.append(first);
    if (wait.prompt) this.root.append(make("div", "nbf-prompt", wait.prompt));
    const read = readPayload(wait.schema ?? "");
    this.schema = read.ok ? read.payload : {};
    const form = formOf(this.schema);
    this.form = form ? new FormView(panel, form, wait.name) : null;
    if (this.form) this.root.append(this.form.root);
    /** @type {HTMLElement[]} */
    this.deciding = [];
    this.actions = make("div", "nbf-actions");
    if (form) this.makeDeciding(form);
    this.other = makeButton(form ? "Send other payload…" : "Send payload…", "", "nbf-quiet");
    this.other.setAttribute("aria-expanded", "false");
    this.other.addEventListener("click", () => this.open(Boolean(this.box.hidden)));
    this.actions.append(...this.deciding, this.other);
    this.box = this.makeBox();
    this.root.append(this.actions, this.box);
    if (!form) this.open(true, false);
    successors.set(this.root, panel.next);
    this.root.setAttribute("data-new", "");
    setTimeout(() => {
      setAttribute(this.root, "data-new", null);
      this.update(panel.link.now());
    }, SETTLED_MS);
  }

  /** @param {Form} form */
  makeDeciding(form) {
    const { wait, panel } = this;
    /** @type {[string, string, string, boolean | undefined][]} */
    const pair = [
      ["Approve", "done", "nbf-approve", true],
      ["Reject", "failed", "nbf-reject", false],
    ];
    for (const [label, icon, className, approved] of form.pair !== null ? pair : [["Send", "", "nbf-approve", undefined]]) {
      const button = makeButton(String(label), String(icon), String(className));
      button.setAttribute("aria-label", `${label} ${wait.event} of ${panel.state().id}: ${wait.name}`);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return this.panel.notice(button.title);
        const read = this.form?.read(/** @type {boolean | undefined} */ (approved));
        if (read) this.decide(button, read.payload);
      });
      this.deciding.push(button);
    }
  }

  makeBox() {
    const box = make("div", "nbf-box");
    box.hidden = true;
    const id = this.panel.uid(`payload-${++ids}`);
    const label = make("label", "", "Payload (JSON)", { for: id });
    this.area = /** @type {HTMLTextAreaElement} */ (make("textarea", "", "", { id, rows: "4", spellcheck: "false" }));
    this.area.value = writePayload(skeleton(this.schema), 2);
    this.problem = make("div", "nbf-problem", "", { role: "alert" });
    const send = makeButton("Send", "", "nbf-approve");
    send.addEventListener("click", () => {
      if (send.getAttribute("aria-disabled") === "true") return this.panel.notice(send.title);
      // As it is written: the kernel reads it, since JavaScript would change some numbers.
      this.decide(send, new Exact(/** @type {HTMLTextAreaElement} */ (this.area).value.trim() || "null"));
    });
    this.deciding.push(send);
    const cancel = makeButton("Cancel");
    cancel.addEventListener("click", () => this.open(false));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.open(false);
    });
    const actions = make("div", "nbf-actions");
    actions.append(send, cancel);
    box.append(label, this.area, this.problem, actions);
    return box;
  }

  /**
   * @param {boolean} open
   * @param {boolean} [focus]
   */
  open(open, focus = true) {
    show(this.box, open);
    show(this.other, !open);
    if (this.form) {
      show(this.form.root, !open && this.form.parts.length > 0);
      for (const button of this.deciding.slice(0, -1)) show(button, !open || !this.form.parts.length);
    }
    this.other.setAttribute("aria-expanded", String(open));
    if (focus) (open ? this.area : this.other)?.focus();
  }

  /**
   * @param {HTMLElement} button
   * @param {any} payload
   */
  decide(button, payload) {
    const { name, count } = this.wait;
    setText(/** @type {HTMLElement} */ (this.problem), "");
    click(this.panel, button, { type: "decide", name, count, payload: writePayload(payload) }, (answer) => {
      const { by, at } = answer.answered ?? {};
      const now = this.panel.link.now();
      if (by !== undefined) this.panel.notice(`${by} was first: answered at ${moment(at, now, true)}`, "muted");
      if (answer.ok || !Array.isArray(answer.fields)) return;
      this.panel.notice("");
      if (this.form && !this.form.root.hidden) this.form.tell(answer.fields);
      else setText(/** @type {HTMLElement} */ (this.problem), String(answer.error));
    });
  }

  first() {
    return this.form?.first() ?? this.deciding.find(isShown) ?? this.other;
  }

  /** @param {number} now */
  update(now) {
    const gone = this.wait.due !== null && now >= this.wait.due;
    const fresh = this.root.hasAttribute("data-new") ? "it has just appeared" : "";
    const reason = this.panel.unheard() || (gone ? "its time is over" : fresh);
    for (const button of this.deciding) if (!button.dataset.sending) setReason(button, reason);
    this.tick(now);
  }

  /** @param {number} now */
  tick(now) {
    const { due } = this.wait;
    const text = due === null ? "" : now >= due ? "time is over" : `expires in ${duration(due - now, true)}`;
    setText(this.left, text);
    this.left.classList.toggle("nbf-soon", due !== null && due - now < 300000);
    if (due !== null) this.left.title = moment(due, now);
  }
}

/** The open waits. */
class Banners {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.root = make("div", "nbf-banners");
    this.more = makeButton("", "down", "nbf-quiet nbf-more");
    this.more.addEventListener("click", () => panel.showWaits());
    this.root.append(this.more);
    /** @type {Map<string, Banner>} */
    this.shown = new Map();
  }

  /**
   * The waits that have a form here: those due first, and those whose form somebody has begun to fill in.
   * @returns {Map<string, Wait>}
   */
  wanted() {
    const { head, waits } = this.panel.state();
    const open = FINISHED.includes(head.status) ? [] : waits;
    const all = new Map(open.map((wait) => [waitKey(wait), wait]));
    const wanted = new Map([...all].slice(0, BANNERS));
    const untold = open.length < head.waiting; // a state tells no more of them than fit into it
    for (const [key, banner] of this.shown) {
      const wait = all.get(key) ?? (untold ? banner.wait : null);
      if (banner.begun && wait) wanted.set(key, wait);
    }
    return wanted;
  }

  /** @param {number} now */
  update(now) {
    const { head } = this.panel.state();
    const wanted = this.wanted();
    for (const [key, banner] of this.shown) {
      if (wanted.has(key)) continue;
      banner.root.remove();
      this.shown.delete(key);
    }
    const keys = [...wanted.keys()];
    keys.forEach((key, place) => {
      const wait = /** @type {Wait} */ (wanted.get(key));
      let banner = this.shown.get(key);
      if (!banner) {
        banner = new Banner(this.panel, wait);
        this.shown.set(key, banner);
        const next = keys.slice(place + 1).map((one) => this.shown.get(one)).find(Boolean);
        (next?.root ?? this.more).before(banner.root);
      }
      banner.wait = wait;
      banner.update(now);
    });
    const more = FINISHED.includes(head.status) ? 0 : head.waiting - wanted.size;
    setText(/** @type {Element} */ (this.more.querySelector("span")), `${thousands(more)} more ${more === 1 ? "wait is" : "waits are"} open: show ${more === 1 ? "it" : "all"} in the list`);
    show(this.more, more > 0);
  }

  /** @returns {HTMLElement | undefined} where the first of them is answered */
  first() {
    const [top] = [...this.shown.values()].sort((a, b) => (a.root.compareDocumentPosition(b.root) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    return top?.first();
  }
}

/** @param {Wait} wait */
function waitKey({ name, count, since, prompt, schema }) {
  return JSON.stringify([name, count, since, prompt, schema]);
}

/** The list of steps: a virtual treegrid of 24 px rows, as words or as a timeline. */
class StepList {
  /**
   * @param {Panel} panel
   * @param {(row: Row | null) => void} onSelect
   * @param {() => void} onOpen Enter: go into the details
   */
  constructor(panel, onSelect, onOpen) {
    this.panel = panel;
    this.onSelect = onSelect;
    this.onOpen = onOpen;
    /** @type {Map<number, {row: Row, version: number}>} */
    this.known = new Map();
    this.total = 0;
    this.more = false;
    this.active = 0;
    /** @type {StepKey | null} */
    this.selected = null;
    /** Groups that show their steps: type and name. @type {[string, string][]} */
    this.opened = [];
    this.asking = false;
    this.askedAt = 0;
    this.round = 0;
    this.answered = 0;
    this.following = true;
    /** Where following has put the list: anywhere else, somebody has scrolled. */
    this.put = 0;
    this.timeline = new Axis(panel, () => this.draw());
    this.root = make("div", "nbf-steps");
    this.makeBar();
    this.grid = make("div", "nbf-grid", "", { role: "treegrid", tabindex: "0", "aria-label": "Steps", "aria-colcount": "6" });
    this.columns = make("div", "nbf-row nbf-columns", "", { role: "row", "aria-rowindex": "1" });
    for (const [part, name] of [["nbf-sign", "Sign"], ["nbf-name", "Step"], ["nbf-words", "State"], ["nbf-note", "Output"], ["nbf-chart", ""], ["nbf-time", "Time"]]) {
      const title = make("div", part, "", { role: "columnheader" });
      if (part === "nbf-chart") title.append(this.timeline.axis, make("span", "nbf-spoken", "When"));
      else title.append(make("span", name === "Sign" ? "nbf-spoken" : "", name));
      this.columns.append(title);
    }
    const heads = make("div", "nbf-heads", "", { role: "rowgroup" });
    heads.append(this.columns);
    this.body = make("div", "nbf-rows", "", { role: "rowgroup" });
    this.empty = make("div", "nbf-empty");
    this.grid.append(heads, this.body);
    this.root.append(this.grid, this.empty);
    /** @type {Map<number, ReturnType<StepList["makeRow"]>>} */
    this.drawn = new Map();
    /** @type {ReturnType<StepList["makeRow"]>[]} */
    this.spare = [];
    this.listen();
  }

  makeBar() {
    this.count = make("span", "nbf-shown");
    this.filter = /** @type {HTMLInputElement} */ (
      make("input", "nbf-filter", "", { type: "search", placeholder: "Filter steps", "aria-label": "Filter steps by name or text", spellcheck: "false", maxlength: "200" })
    );
    this.filter.title = "press / in the list";
    this.state = /** @type {HTMLSelectElement} */ (make("select", "nbf-state", "", { "aria-label": "Filter steps by state" }));
    this.state.append(make("option", "", "all states", { value: "" }));
    for (const [value, { word }] of Object.entries(STEP)) this.state.append(make("option", "", word, { value }));
    this.kind = /** @type {HTMLSelectElement} */ (make("select", "nbf-kind", "", { "aria-label": "Filter steps by type" }));
    this.kind.append(make("option", "", "all types", { value: "" }));
    for (const value of ["do", "sleep", "wait", "map", "child", "rollback"]) this.kind.append(make("option", "", value, { value }));
    this.bar = make("div", "nbf-toolbar nbf-steps-bar");
    this.bar.append(this.timeline.buttons, this.count, this.filter, this.state, this.kind);
  }

  listen() {
    this.grid.addEventListener("scroll", () => {
      this.scrolled();
      this.draw();
    });
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => {
      const target = /** @type {HTMLElement} */ (event.target);
      const row = target.closest(".nbf-row");
      const found = [...this.drawn].find(([, parts]) => parts.root === row);
      if (!found) return;
      const known = this.known.get(found[0])?.row;
      if (target.closest(".nbf-retry") && known) {
        click(this.panel, found[1].retry, { type: "retry", key: known.key });
      } else if (known?.counts && target.closest("svg")) this.toggle(known);
      else this.select(found[0]);
    });
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let typing;
    const changed = () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.refilter(), 150);
    };
    this.filter.addEventListener("input", changed);
    this.state.addEventListener("change", changed);
    this.kind.addEventListener("change", changed);
    this.filter.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.filter.value = "";
        this.refilter();
        this.grid.focus();
      } else if (event.key === "Enter" || event.key === "ArrowDown") {
        this.grid.focus();
        event.preventDefault();
      }
    });
  }

  /**
   * Show when things happened in place of what came of them.
   * @param {boolean} on
   */
  asTimeline(on) {
    this.root.classList.toggle("nbf-timeline", on);
    this.timeline.on = on;
    show(this.timeline.buttons, on);
    this.draw();
  }

  atEnd() {
    return this.grid.scrollTop + this.grid.clientHeight >= this.grid.scrollHeight - ROW_HEIGHT;
  }

  /** Note where the list stands now: at its end it follows new steps, unless it only grew taller. */
  scrolled() {
    const top = this.grid.scrollTop;
    if (top === this.put) return;
    this.following = this.atEnd() && (this.following || top > this.put);
    this.put = top;
  }

  /**
   * Show the steps of one state and type, and nothing else.
   * @param {string} state
   * @param {string} kind
   */
  only(state, kind) {
    this.filter.value = "";
    this.state.value = state;
    this.kind.value = kind;
    this.refilter();
    this.grid.focus();
  }

  filtering() {
    return this.filter.value !== "" || this.state.value !== "" || this.kind.value !== "";
  }

  /** Whether the rows that come with the state are not the rows shown. */
  apart() {
    return this.filtering() || this.opened.length > 0;
  }

  refilter() {
    this.active = 0;
    this.following = !this.filtering();
    this.reload();
  }

  /** Forget all rows and ask again: places have changed. */
  reload() {
    this.known.clear();
    this.round += 1;
    this.asking = false;
    if (!this.apart()) this.take();
    this.draw();
  }

  /** Take the rows that came with the state. */
  take() {
    const { head, rows } = this.panel.state();
    if (this.apart()) return;
    this.total = rows.total ?? head.total;
    for (const index of [...this.known.keys()]) if (index >= this.total) this.known.delete(index);
    for (const row of rows.items) this.known.set(row.i, { row, version: head.version });
  }

  update() {
    this.take();
    this.draw();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target !== this.grid) return;
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW_HEIGHT) - 2);
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.total, End: this.total };
    const row = this.known.get(this.active)?.row;
    if (this.timeline.on && this.timeline.onKey(event, this.middle())) return event.preventDefault();
    if (event.key in moves) this.move(this.active + moves[event.key]);
    else if (event.key === "ArrowRight" && row?.counts && !row.open) this.toggle(row);
    else if (event.key === "ArrowLeft" && row) this.leave(row);
    else if (event.key === "Enter" || event.key === " ") {
      this.select(this.active);
      if (event.key === "Enter" && row && (!row.counts || row.key[2])) this.onOpen();
    } else if (event.key === "Escape") this.unselect();
    else return;
    event.preventDefault();
  }

  /** When the chosen row was in the middle: what zooming keeps in sight. */
  middle() {
    const row = this.known.get(this.active)?.row;
    const now = this.panel.link.now();
    return row?.started ? (row.started + (row.ended ?? now)) / 2 : now;
  }

  /**
   * Left: close the group, or go from a step to its group.
   * @param {Row} row
   */
  leave(row) {
    if (row.counts && row.open) return this.toggle(row);
    if (!row.level) return;
    for (let index = this.active; index >= 0; index--) {
      const above = this.known.get(index)?.row;
      if (above?.counts) return this.move(index);
    }
  }

  /** @param {number} index */
  move(index) {
    this.active = Math.max(0, Math.min(this.total - 1, index));
    this.following = false;
    const top = this.active * ROW_HEIGHT;
    const sight = this.grid.clientHeight - ROW_HEIGHT;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top + ROW_HEIGHT > this.grid.scrollTop + sight) this.grid.scrollTop = top + ROW_HEIGHT - sight;
    this.draw();
  }

  /** @param {number} index */
  select(index) {
    const found = this.known.get(index);
    if (!found) return;
    this.active = index;
    this.following = false;
    if (found.row.counts && !found.row.key[2]) {
      this.toggle(found.row);
      return;
    }
    this.selected = found.row.key;
    this.draw();
    this.onSelect(found.row);
  }

  /**
   * Open or close a group.
   * @param {Row} row
   */
  toggle(row) {
    const [type, name] = row.key;
    const left = this.opened.filter((one) => one[0] !== type || one[1] !== name);
    this.opened = left.length < this.opened.length ? left : [...this.opened, /** @type {[string, string]} */ ([type, name])].slice(-50);
    this.following = false;
    this.reload();
  }

  unselect() {
    this.selected = null;
    this.draw();
    this.onSelect(null);
  }

  makeRow() {
    const root = make("div", "nbf-row", "", { role: "row" });
    const icon = makeIcon("queued");
    const [sign, name, state, note, chart, time] = ["nbf-sign", "nbf-name", "nbf-words", "nbf-note", "nbf-chart", "nbf-time"].map((part) =>
      make("div", part, "", { role: "gridcell" }),
    );
    sign.append(icon);
    const text = make("span", "nbf-text");
    const words = make("span", "nbf-says");
    const bar = make("span", "nbf-mini");
    const said = make("span", "nbf-text");
    const retry = makeButton("Retry now", "", "nbf-retry");
    retry.tabIndex = -1;
    const twist = makeIcon("right");
    name.append(twist, text);
    state.append(bar, words);
    note.append(said, retry);
    root.append(sign, name, state, note, chart, time);
    return { root, icon, twist, name: text, title: name, words, bar, note: said, retry, chart, time, index: -1 };
  }

  draw() {
    if (!this.grid.isConnected && this.total > 0) return;
    const height = Math.min(LIST_HEIGHT, (Math.max(1, this.total) + 1) * ROW_HEIGHT);
    this.scrolled(); // the event of a scrolling may still be to come
    this.body.style.height = `${this.total * ROW_HEIGHT}px`;
    if (this.following && !FINISHED.includes(this.panel.state().head.status)) this.grid.scrollTop = this.grid.scrollHeight;
    this.put = this.grid.scrollTop;
    const [first, last] = visibleRange(this.grid.scrollTop, height, this.total);
    for (const [index, parts] of this.drawn) {
      if (index >= first && index < last) continue;
      this.drawn.delete(index);
      parts.root.remove();
      if (this.spare.length < 60) this.spare.push(parts);
    }
    const now = this.panel.link.now();
    if (this.timeline.on) this.timeline.update([...this.known.values()], now);
    for (let index = first; index < last; index++) this.drawRow(index, now);
    const active = this.drawn.get(this.active);
    setAttribute(this.grid, "aria-activedescendant", active ? active.root.id : null);
    setAttribute(this.grid, "aria-rowcount", String(this.total + 1));
    const { total } = this.panel.state().head;
    const all = `${thousands(total)} step${total === 1 ? "" : "s"}`;
    const items = this.filtering() && [...this.known.values()].some(({ row }) => row.key[3] !== null); // they are not among the steps
    setText(this.count, items ? `${thousands(this.total)}${this.more ? "+" : ""} found` : this.filtering() ? `${thousands(this.total)} of ${all}` : all);
    setText(this.empty, this.total ? "" : this.filtering() ? "no step matches" : "no steps yet");
    show(this.empty, this.total === 0);
    this.fetch(first, last);
  }

  /**
   * @param {number} index
   * @param {number} now
   */
  drawRow(index, now) {
    let parts = this.drawn.get(index);
    if (!parts) {
      parts = this.spare.pop() ?? this.makeRow();
      parts.index = index;
      parts.root.id = this.panel.uid(`row-${index}`);
      parts.root.style.transform = `translateY(${index * ROW_HEIGHT}px)`;
      setAttribute(parts.root, "aria-rowindex", String(index + 2));
      this.drawn.set(index, parts);
      this.body.append(parts.root);
    }
    const row = this.known.get(index)?.row;
    const selected = row !== undefined && this.selected !== null && String(row.key) === String(this.selected);
    parts.root.classList.toggle("nbf-active", index === this.active);
    setAttribute(parts.root, "aria-selected", String(selected));
    show(/** @type {any} */ (parts.retry), row?.state === "retrying" && !row.counts && !neverReturns(row, this.panel.state().head));
    setAttribute(parts.root, "aria-level", String(row?.level ?? 1));
    setAttribute(parts.root, "aria-expanded", row?.counts ? String(Boolean(row.open)) : null);
    parts.root.classList.toggle("nbf-inside", row?.level === 2);
    if (!row) {
      parts.root.dataset.state = "unknown";
      for (const cell of [parts.name, parts.words, parts.note, parts.time]) setText(cell, "");
      drawShares(parts.bar, []);
      parts.chart.replaceChildren();
      return;
    }
    this.fillRow(parts, row, now);
  }

  /**
   * @param {ReturnType<StepList["makeRow"]>} parts
   * @param {Row} told
   * @param {number} now
   */
  fillRow(parts, told, now) {
    const { head } = this.panel.state();
    const row = asLeft(told, head);
    const words = stepWords(row, now, head);
    const { icon, tone, text } = row.counts ? { ...words, text: groupWords(row).count } : words;
    setIcon(parts.icon, icon);
    setAttribute(parts.root, "data-of", JSON.stringify(row.key));
    parts.root.dataset.tone = tone;
    parts.root.dataset.state = row.state;
    parts.root.dataset.group = String(Boolean(row.counts));
    setIcon(parts.twist, row.open ? "down" : "right");
    const name = row.counts && !row.key[2] ? row.key[1] : stepName(row.key);
    setText(parts.name, name);
    setAttribute(parts.title, "title", name);
    const far = progressWords(row.progress);
    const shares = row.counts ? groupShares(row) : far?.share !== undefined && far?.share !== null ? [{ tone: "running", share: far.share }] : [];
    drawShares(parts.bar, shares);
    parts.bar.classList.toggle("nbf-on", shares.length > 0);
    setText(parts.words, far ? far.text : text);
    setText(parts.note, row.counts ? groupWords(row).note : (row.note ?? ""));
    setText(parts.time, stepTime(row, runUntil(head, now)));
    if (this.panel.unheard()) setReason(parts.retry, this.panel.unheard());
    else if (!parts.retry.dataset.sending) setReason(parts.retry, "");
    if (this.timeline.on) this.timeline.fill(parts.chart, row, runUntil(head, now));
  }

  /** @param {number} now */
  tick(now) {
    for (const index of this.drawn.keys()) {
      const row = this.known.get(index)?.row;
      if (row && !row.ended) this.drawRow(index, now);
    }
    if (Date.now() - this.askedAt > ANSWER_MS) this.asking = false;
    this.draw();
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  fetch(first, last) {
    const { version } = this.panel.state().head;
    const apart = this.apart();
    let wanted = toAsk(first, last, (index) => this.known.get(index)?.version, version);
    if (apart && ((this.known.size === 0 && this.total === 0) || this.round !== this.answered)) {
      wanted = { start: Math.max(0, first - 40), stop: Math.max(0, first - 40) + PAGE, missing: true };
    }
    if (!wanted || this.asking || (!wanted.missing && Date.now() - this.askedAt < REFRESH_MS)) return;
    this.asking = true;
    this.askedAt = Date.now();
    const round = this.round;
    const { start, stop } = wanted;
    const message = { type: "rows", start, stop, text: this.filter.value, state: this.state.value, kind: this.kind.value, open: this.filtering() ? [] : this.opened };
    this.panel.link.ask(message, (answer) => this.onRows(answer, round, version));
  }

  /**
   * @param {any} answer
   * @param {number} round
   * @param {number} version what the page knew when it asked
   */
  onRows(answer, round, version) {
    if (round !== this.round) return;
    this.asking = false;
    this.answered = round;
    if (!answer.ok) {
      this.panel.notice(String(answer.error));
      return;
    }
    const { rows } = answer;
    if (this.apart()) this.total = rows.total;
    this.more = Boolean(rows.more);
    rows.items.forEach((/** @type {Row} */ row, /** @type {number} */ place) => {
      this.known.set(rows.start + place, { row, version: Math.max(rows.version, version) });
    });
    for (const index of [...this.known.keys()]) if (index >= this.total) this.known.delete(index);
    this.draw();
  }
}

/** The time axis of the list: its window, its ticks, its buttons and keys. The wheel belongs to the notebook. */
class Axis {
  /**
   * @param {Panel} panel
   * @param {() => void} onChange
   */
  constructor(panel, onChange) {
    this.panel = panel;
    this.onChange = onChange;
    this.on = false;
    /** @type {[number, number]} */
    this.whole = [0, 1];
    /** @type {[number, number] | null} null: all of it */
    this.window = null;
    this.axis = make("div", "nbf-axis");
    this.buttons = make("div", "nbf-zoom", "", { role: "group", "aria-label": "Zoom" });
    for (const [text, label, factor, shift] of /** @type {[string, string, number, number][]} */ ([
      ["−", "Zoom out (key -)", 2, 0],
      ["+", "Zoom in (key +)", 0.5, 0],
      ["‹", "Earlier (key [)", 1, -0.5],
      ["›", "Later (key ])", 1, 0.5],
    ])) {
      const button = makeButton(text, "", "nbf-small");
      button.setAttribute("aria-label", label);
      button.title = label;
      button.addEventListener("click", () => this.change(factor, shift));
      this.buttons.append(button);
    }
    const fit = makeButton("Fit", "", "nbf-small");
    fit.title = "All of it (key 0)";
    fit.addEventListener("click", () => this.fit());
    this.buttons.append(fit);
    this.buttons.hidden = true;
  }

  fit() {
    this.window = null;
    this.onChange();
  }

  /**
   * @param {number} factor
   * @param {number} shift
   * @param {number} [around]
   */
  change(factor, shift, around) {
    const shown = this.shown();
    this.window = zoomed(shown, this.whole, factor, shift, around ?? (shown[0] + shown[1]) / 2);
    this.onChange();
  }

  /** @returns {[number, number]} */
  shown() {
    return this.window ?? this.whole;
  }

  /**
   * @param {KeyboardEvent} event
   * @param {number} around
   * @returns {boolean} whether it was a key of the axis
   */
  onKey(event, around) {
    if (event.key === "+" || event.key === "=") this.change(0.5, 0, around);
    else if (event.key === "-") this.change(2, 0, around);
    else if (event.key === "0") this.fit();
    else if (event.key === "[") this.change(1, -0.5);
    else if (event.key === "]") this.change(1, 0.5);
    else return false;
    return true;
  }

  /**
   * @param {{row: Row}[]} known
   * @param {number} now
   */
  update(known, now) {
    const { head, created } = this.panel.state();
    const starts = known.map(({ row }) => row.started).filter((one) => typeof one === "number");
    const begun = Math.min(...[head.started ?? created ?? now, ...starts].map(Number));
    const end = Math.max(head.ended ?? runUntil(head, now), begun + 1);
    this.whole = [begun, end + (end - begun) * 0.02];
    const shown = this.shown();
    const marks = ticks(shown, begun);
    while (this.axis.children.length > marks.length) this.axis.lastElementChild?.remove();
    while (this.axis.children.length < marks.length) this.axis.append(make("span", "nbf-tick"));
    marks.forEach(({ at, text }, place) => {
      const mark = /** @type {HTMLElement} */ (this.axis.children[place]);
      setText(mark, text);
      mark.style.insetInlineStart = `${((at - shown[0]) / (shown[1] - shown[0])) * 100}%`;
    });
  }

  /**
   * @param {HTMLElement} chart
   * @param {Row} row
   * @param {number} now
   */
  fill(chart, row, now) {
    const shown = this.shown();
    const found = spans(row, now)
      .map((span) => ({ ...span, place: placedIn(span, shown) }))
      .filter(({ place }) => place !== null);
    while (chart.children.length > found.length) chart.lastElementChild?.remove();
    while (chart.children.length < found.length) chart.append(make("div", "nbf-span"));
    found.forEach(({ kind, title, place }, index) => {
      const node = /** @type {HTMLElement} */ (chart.children[index]);
      node.dataset.kind = kind;
      node.title = title;
      node.style.insetInlineStart = `${place?.left}%`;
      node.style.width = `${place?.width}%`;
    });
    setAttribute(chart, "aria-label", found.map(({ title }) => title).join("; ") || null);
  }
}

/** What is known of the selected step. */
class StepDetail {
  /**
   * @param {Panel} panel
   * @param {() => void} onClose
   * @param {() => void} onRestart
   */
  constructor(panel, onClose, onRestart) {
    this.panel = panel;
    /** @type {Row | null} */
    this.row = null;
    /** @type {Detail | null} */
    this.detail = null;
    this.tab = "";
    this.asked = "";
    /** @type {Banner | null} */
    this.banner = null;
    this.root = make("section", "nbf-detail", "", { "aria-label": "Step" });
    this.root.hidden = true;
    this.title = make("div", "nbf-name");
    this.words = make("div", "nbf-words");
    this.icon = makeIcon("queued");
    const close = makeButton("", "failed", "nbf-quiet nbf-close");
    close.setAttribute("aria-label", "Close details");
    close.addEventListener("click", onClose);
    this.top = make("div", "nbf-about");
    this.top.append(this.icon, this.title, this.words, close);
    this.tabs = new Tabs("About this step", (name) => this.choose(name));
    this.body = make("div", "nbf-shows", "", { role: "tabpanel", tabindex: "0", id: panel.uid("shows") });
    this.foot = make("div", "nbf-foot");
    this.retry = makeButton("Retry now", "retrying", "nbf-small");
    this.retry.addEventListener("click", () => this.row && click(panel, this.retry, { type: "retry", key: this.row.key }));
    this.again = makeButton("Restart from here…", "rolling", "nbf-small");
    this.again.addEventListener("click", onRestart);
    this.copy = makeCopy("Copy as code", () => (this.row ? codeFor(panel.state(), this.row.key) : ""));
    this.foot.append(this.retry, this.again, this.copy);
    this.root.append(this.top, this.tabs.root, this.body, this.foot);
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") onClose();
    });
  }

  names() {
    const { detail } = this;
    if (!detail) return [];
    const names = ["Output"];
    if (detail.wait || detail.closed) names.unshift("Answer");
    if (detail.error) names.unshift("Error");
    if (detail.log.items.length) names.push("Log");
    if (detail.attempts.length) names.push("Attempts");
    if (detail.code || detail.diff) names.push("Code");
    return names;
  }

  /** @param {Row | null} row */
  open(row) {
    this.row = row;
    this.detail = this.banner = null;
    if (["Answer", "Output", "Error"].includes(this.tab)) this.tab = ""; // what waits opens at its question, what has failed at its error
    this.asked = "";
    show(this.root, row !== null);
    this.body.replaceChildren(make("div", "nbf-empty", "loading…"));
    this.tabs.set([], "");
    this.ask();
  }

  /**
   * Ask again when the row says that something is new.
   * @param {Row | undefined} row
   */
  refresh(row) {
    if (!this.row || !row) return;
    this.row = row;
    this.ask();
  }

  ask() {
    const { row } = this;
    if (!row) return;
    this.tick(this.panel.link.now());
    const mark = JSON.stringify([row.key, row.state, row.attempt, row.ended, row.note, row.stale, row.progress, row.state === "waiting" && this.panel.state().head.status]);
    if (mark === this.asked) return;
    this.asked = mark;
    this.panel.link.ask(
      { type: "step", index: row.i, key: row.key },
      (answer) => {
        if (mark !== this.asked) return;
        const before = JSON.stringify(this.detail);
        this.detail = answer.ok ? answer.step : null;
        if (this.detail && JSON.stringify(this.detail) === before) return; // what is being read or selected stays
        if (this.detail) this.choose(this.names().includes(this.tab) ? this.tab : this.names()[0]);
        else this.body.replaceChildren(make("div", "nbf-empty", answer.ok ? "this step is gone" : String(answer.error)));
      },
      () => {
        if (mark !== this.asked || this.detail) return;
        this.body.replaceChildren(make("div", "nbf-empty", "No answer from the kernel yet: busy, or restarted."));
      },
    );
  }

  /** @param {string} tab */
  choose(tab) {
    const same = this.tab === tab;
    this.tab = tab;
    this.tabs.set(this.names(), tab, this.body.id);
    setAttribute(this.body, "aria-label", tab);
    const scroll = same ? this.body.scrollTop : 0;
    const content = this.content(tab);
    if (content.length === 1 && content[0] === this.body.firstElementChild) return; // its form is being filled in
    this.body.replaceChildren(...content);
    this.body.scrollTop = scroll;
  }

  /**
   * @param {string} tab
   * @returns {HTMLElement[]}
   */
  content(tab) {
    const { detail } = this;
    if (!detail) return [];
    if (tab === "Answer") return [detail.wait ? this.form(detail.wait).root : make("div", "nbf-empty", detail.closed)];
    if (tab === "Error" && detail.error) return errorParts(detail.error, detail.attempts);
    if (tab === "Attempts") return [attemptsTable(detail.attempts, this.panel.link.now())];
    if (tab === "Log") return logNodes(detail.log, false);
    if (tab === "Code") return codeNodes(detail);
    if (isMap(detail.row)) return [make("div", "nbf-empty", "each item has its own output: open the row, or filter by state, by an item's name or by what it says")];
    if (detail.row.state !== "finished") return [make("div", "nbf-empty", noOutput(detail.row, this.panel.state().head))];
    return outputs(detail.preview).flatMap((output) => outputNodes(output, () => codeFor(this.panel.state(), detail.row.key)));
  }

  /** @param {Wait} wait */
  form(wait) {
    if (!this.banner || waitKey(this.banner.wait) !== waitKey(wait)) this.banner = new Banner(this.panel, wait);
    this.banner.wait = wait;
    this.banner.update(this.panel.link.now());
    return this.banner;
  }

  focus() {
    const form = this.tab === "Answer" ? this.banner : null;
    (form?.first() ?? this.tabs.chosen() ?? this.body).focus();
  }

  /** @param {number} now */
  tick(now) {
    if (!this.row) return;
    const { head } = this.panel.state();
    const row = asLeft(this.row, head);
    const { icon, tone, text } = stepWords(row, now, head);
    setIcon(this.icon, icon);
    this.top.dataset.tone = tone;
    if (this.tab === "Answer") this.banner?.update(now);
    setText(this.title, stepName(this.row.key));
    setAttribute(this.title, "title", stepName(this.row.key));
    const told = progressWords(this.row.progress);
    const items = isMap(row) ? groupWords(row) : null;
    const said = [text, items?.count, ...(items?.note.split(" · ") ?? []), told?.text, stepTime(row, runUntil(head, now))];
    setText(this.words, [...new Set(said.filter(Boolean))].join(" · "));
    show(this.retry, row.state === "retrying" && !neverReturns(row, head));
    show(this.again, noRestartFrom(this.row) === "");
    const unheard = this.panel.unheard();
    if (!this.retry.dataset.sending) setReason(this.retry, unheard);
    setReason(this.again, unheard || controls(this.panel.state().head).restart);
  }
}

/** A row of tabs: arrows move, the chosen one alone is in the tab order. */
class Tabs {
  /**
   * @param {string} label
   * @param {(name: string) => void} onChoose
   */
  constructor(label, onChoose) {
    this.onChoose = onChoose;
    this.root = make("div", "nbf-tabs", "", { role: "tablist", "aria-label": label });
    this.root.addEventListener("keydown", (event) => {
      const names = [...this.root.children].map((node) => node.textContent ?? "");
      const at = names.indexOf(this.chosen()?.textContent ?? "");
      const places = { ArrowRight: at + 1, ArrowLeft: at - 1 + names.length, Home: 0, End: names.length - 1 };
      const place = places[/** @type {keyof typeof places} */ (event.key)];
      if (place === undefined || !names.length) return;
      this.onChoose(names[place % names.length]);
      this.chosen()?.focus();
      event.preventDefault();
    });
  }

  /** @returns {HTMLElement | null} */
  chosen() {
    return this.root.querySelector("[aria-selected=true]");
  }

  /**
   * @param {string[]} names
   * @param {string} chosen
   * @param {string} [controls] id of what they show
   */
  set(names, chosen, controls = "") {
    if ([...this.root.children].map((node) => node.textContent).join("\n") !== names.join("\n")) {
      const held = this.root.contains(document.activeElement);
      this.root.replaceChildren(
        ...names.map((name) => {
          const button = make("button", "nbf-tab", name, { type: "button", role: "tab" });
          if (controls) button.setAttribute("aria-controls", controls);
          button.addEventListener("click", () => this.onChoose(name));
          return button;
        }),
      );
      show(this.root, names.length > 0);
      if (held) queueMicrotask(() => this.chosen()?.focus());
    }
    for (const node of this.root.children) {
      const is = node.textContent === chosen;
      setAttribute(node, "aria-selected", String(is));
      setAttribute(node, "tabindex", is ? "0" : "-1");
    }
  }
}

/**
 * @param {string} label
 * @param {() => string} text
 */
function makeCopy(label, text) {
  const button = makeButton(label, "copy", "nbf-small");
  const words = /** @type {HTMLElement} */ (button.querySelector("span"));
  button.addEventListener("click", async () => {
    const done = await copyText(text());
    setText(words, done ? "copied" : "could not copy");
    setTimeout(() => setText(words, label), 1500);
  });
  return button;
}

/** @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = /** @type {HTMLTextAreaElement} */ (make("textarea", "nbf-spoken"));
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand?.("copy") ?? false; // where a page has no clipboard of its own: plain http
    area.remove();
    return done;
  }
}

/**
 * @param {Failure} error
 * @param {Attempt[]} [attempts]
 * @returns {HTMLElement[]}
 */
function errorParts(error, attempts = []) {
  const line = make("div", "nbf-failure");
  line.append(make("strong", "", error.type), document.createTextNode(error.message ? `: ${error.message}` : ""));
  const top = make("div", "nbf-error-top");
  top.append(line, makeCopy("Copy", () => error.traceback || `${error.type}: ${error.message}`));
  const failed = attempts.filter((attempt) => attempt.error);
  const tries = failed.length > 1 ? [make("div", "nbf-caption", `${failed.length} attempts failed; this is the latest error`)] : [];
  return [top, ...tries, ...(error.traceback ? [tracebackNode(error.traceback)] : [])];
}

/** @param {string} text */
function tracebackNode(text) {
  const root = make("div", "nbf-traceback");
  for (const { own, lines } of tracebackParts(text)) {
    if (own) root.append(make("pre", "nbf-pre", lines.join("\n")));
    else {
      const more = make("details", "nbf-library");
      const frames = lines.filter((line) => /^\s*(\|\s*)*File "/.test(line)).length;
      more.append(make("summary", "", `${frames} frame${frames === 1 ? "" : "s"} of libraries`), make("pre", "nbf-pre", lines.join("\n")));
      root.append(more);
    }
  }
  return root;
}

/**
 * @param {Attempt[]} attempts
 * @param {number} now
 */
function attemptsTable(attempts, now) {
  const table = make("table", "nbf-table");
  const head = make("tr");
  for (const name of ["#", "State", "Started", "Took", "Error"]) head.append(make("th", "", name, { scope: "col" }));
  table.append(head);
  for (const attempt of attempts) {
    const line = make("tr");
    const took = attempt.seconds === null ? "" : duration(attempt.seconds * 1000);
    const state = STEP[attempt.state]?.word ?? attempt.state;
    for (const text of [String(attempt.number), state, moment(attempt.started, now), took]) line.append(make("td", "", text));
    const cell = make("td");
    const { error } = attempt;
    if (error?.traceback) {
      const more = make("details");
      more.append(make("summary", "", `${error.type}: ${error.message}`));
      more.addEventListener("toggle", () => more.children.length < 2 && more.append(tracebackNode(error.traceback ?? "")));
      cell.append(more);
    } else if (error) cell.textContent = `${error.type}: ${error.message}`;
    line.append(cell);
    table.append(line);
  }
  return table;
}

/**
 * @param {Detail} detail
 * @returns {HTMLElement[]}
 */
function codeNodes(detail) {
  const nodes = [];
  if (detail.why.length) nodes.push(make("div", "nbf-caption nbf-why", `stale: ${detail.why.join(", ")}`));
  if (detail.diff) {
    const diff = make("div", "nbf-diff", "", { role: "group", "aria-label": "What changed: recorded to present" });
    for (const line of detail.diff.replace(/\n$/, "").split("\n")) {
      const kind = /^(\+\+\+|---)/.test(line) ? "file" : { "+": "added", "-": "removed", "@": "place" }[line[0]] ?? "same";
      diff.append(make("div", "nbf-line-of", line || " ", { "data-kind": kind }));
    }
    nodes.push(diff);
  }
  if (detail.code) {
    if (detail.diff) nodes.push(make("div", "nbf-caption", "as it ran"));
    nodes.push(make("pre", "nbf-pre", detail.code));
  }
  return nodes;
}

const FRAME_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'";

/**
 * HTML of others: in a frame that may do nothing and load nothing.
 * @param {string} html
 */
function sandboxed(html) {
  const frame = make("iframe", "nbf-html", "", { sandbox: "", title: "HTML that a step displayed", loading: "lazy", referrerpolicy: "no-referrer" });
  frame.setAttribute("srcdoc", `<!doctype html><meta http-equiv="Content-Security-Policy" content="${FRAME_POLICY}"><base target="_blank">${html}`);
  return frame;
}

/**
 * @param {Log} log
 * @param {boolean} named say which step each item is of
 * @returns {HTMLElement[]}
 */
function logNodes(log, named) {
  if (!log.items.length) return [make("div", "nbf-empty", "nothing was printed or logged")];
  const nodes = [];
  if (log.total > log.items.length) nodes.push(make("div", "nbf-caption", `the last ${thousands(log.items.length)} of ${thousands(log.total)}`));
  let before = "";
  for (const item of log.items) {
    const name = named && item.step ? stepName(item.step) : "";
    const part = [name, item.attempt > 1 ? `attempt ${item.attempt}` : ""].filter(Boolean).join(" · ");
    if (part !== before && part) nodes.push(make("div", "nbf-caption nbf-part", part));
    before = part;
    nodes.push(logNode(item));
  }
  return nodes;
}

/** @param {LogItem} item */
function logNode(item) {
  const line = make("div", "nbf-log", "", { "data-stream": item.stream });
  if (["warning", "stderr", "note"].includes(item.stream)) line.append(make("span", "nbf-stream", item.stream));
  const { mime = {} } = item;
  if (/^[A-Za-z0-9+/=\s]+$/.test(mime["image/png"] ?? "")) {
    line.append(make("img", "nbf-image", "", { src: `data:image/png;base64,${mime["image/png"].replaceAll(/\s/g, "")}`, alt: item.text || "picture" }));
  } else if (mime["text/html"]) line.append(sandboxed(mime["text/html"]));
  else line.append(make("pre", "nbf-pre", terminalText(mime["text/plain"] ?? item.text).replace(/\n$/, "")));
  return line;
}

/**
 * @param {Output} output
 * @param {() => string} code
 * @returns {HTMLElement[]}
 */
function outputNodes(output, code) {
  if (output.kind === "none") return [make("div", "nbf-empty", output.caption)];
  if (output.kind === "file") return [fileNode(output)];
  const nodes = output.caption ? [make("div", "nbf-caption", output.caption)] : [];
  if (output.kind === "table") {
    if (nodes.length && output.columns?.length) nodes[0].append(makeCopy("open in a cell", code));
    const frame = make("div", "nbf-wide", "", { tabindex: "0", role: "group", "aria-label": output.caption || "values" });
    frame.append(dataTable(output));
    nodes.push(frame);
  } else if (output.kind === "image") {
    nodes.push(make("img", "nbf-image", "", { src: `data:image/png;base64,${output.png}`, alt: output.caption }));
  } else if (output.kind === "heat") nodes.push(heatMap(output), make("div", "nbf-hint", output.text ?? ""));
  else if (output.kind === "tree") nodes.push(treeNode(output.tree, "", 0));
  else nodes.push(make("pre", "nbf-pre", output.text ?? ""));
  return nodes;
}

/** @param {Output} output */
function fileNode({ caption, text = "" }) {
  const node = make("div", "nbf-file");
  node.append(make("code", "nbf-path", caption), make("span", "nbf-hint", text), makeCopy("Copy path", () => caption));
  return node;
}

/**
 * JSON as a tree whose branches are made when they are opened.
 * @param {any} value
 * @param {string} name
 * @param {number} depth
 * @returns {HTMLElement}
 */
function treeNode(value, name, depth) {
  const label = () => (name === "" ? [] : [make("span", "nbf-key", name), document.createTextNode(": ")]);
  if (value === null || typeof value !== "object" || value instanceof Exact) {
    const leaf = make("div", "nbf-leaf");
    leaf.append(...label(), make("span", "nbf-value", typeof value === "string" ? value : writePayload(value), { "data-type": value === null ? "null" : value instanceof Exact ? "number" : typeof value }));
    return leaf;
  }
  const entries = Array.isArray(value) ? value.map((item, place) => /** @type {[string, any]} */ ([String(place), item])) : Object.entries(value);
  const node = /** @type {HTMLDetailsElement} */ (make("details", "nbf-branch"));
  const summary = make("summary");
  const size = Array.isArray(value) ? `[${thousands(entries.length)}]` : `{${thousands(entries.length)}}`;
  summary.append(...label(), make("span", "nbf-size", size));
  node.append(summary);
  const fill = () => {
    if (node.children.length > 1) return;
    const inner = make("div", "nbf-branches");
    for (const [key, item] of entries.slice(0, 500)) inner.append(treeNode(item, key, depth + 1));
    if (entries.length > 500) inner.append(make("div", "nbf-hint", `${thousands(entries.length - 500)} more`));
    node.append(inner);
  };
  node.addEventListener("toggle", () => node.open && fill());
  if (depth === 0 || (depth === 1 && entries.length <= 12)) {
    fill();
    node.open = true;
  }
  return node;
}

/** @param {Output} output */
function dataTable({ columns = [], rows = [], indexed }) {
  const table = make("table", "nbf-table nbf-data");
  const numeric = (/** @type {string | undefined} */ text) => /^-?[\d.,]+(e[+-]?\d+)?$/i.test(text ?? "");
  if (columns.length) {
    const head = make("tr");
    columns.forEach(({ name, type }, place) => {
      const title = make("th", rows.some((row) => numeric(row[place])) ? "nbf-number" : "", name, { scope: "col" });
      if (type) title.append(make("span", "nbf-type", type));
      head.append(title);
    });
    table.append(head);
  }
  for (const row of rows) {
    const line = make("tr");
    row.forEach((text, place) => {
      line.append(make(indexed && place === 0 ? "th" : "td", numeric(text) ? "nbf-number" : "", text));
    });
    table.append(line);
  }
  return table;
}

/** @param {Output} output */
function heatMap({ heat = [], caption }) {
  const width = Math.max(...heat.map((row) => row.length), 1);
  const canvas = /** @type {HTMLCanvasElement} */ (
    make("canvas", "nbf-heat", "", { width: String(width), height: String(heat.length), role: "img", "aria-label": caption })
  );
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  heat.forEach((row, y) => {
    row.forEach((value, x) => {
      context.fillStyle = `hsl(212 70% ${92 - (Math.max(0, Math.min(255, Number(value) || 0)) / 255) * 70}%)`;
      context.fillRect(x, y, 1, 1);
    });
  });
  return canvas;
}

/** The instance's own outcome: its error, in full where it is opened, what it was interrupted by, who runs it, its output. */
class Outcome {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.root = make("div", "nbf-outcome");
    this.icon = makeIcon("done");
    this.text = make("div", "nbf-result");
    this.place = make("div", "nbf-place");
    this.more = makeButton("Traceback", "", "nbf-small");
    this.whole = make("div", "nbf-whole", "", { id: panel.uid("error"), role: "group", "aria-label": "Error", tabindex: "0" });
    this.more.setAttribute("aria-controls", this.whole.id);
    this.more.addEventListener("click", () => this.open(Boolean(this.whole.hidden)));
    const line = make("div", "nbf-outcome-line");
    line.append(this.icon, this.text, this.place, this.more);
    this.root.append(line, this.whole);
    /** What `whole` shows, or has asked for. */
    this.asked = "";
    this.open(false);
  }

  /** @param {boolean} open */
  open(open) {
    show(this.whole, open);
    this.more.setAttribute("aria-expanded", String(open));
    if (open) return this.ask();
    this.asked = "";
    this.whole.replaceChildren();
  }

  /** Ask for the error in full, where it is not the one that is shown. */
  ask() {
    const { head } = this.panel.state();
    const mark = JSON.stringify([head.error, head.ended]);
    if (mark === this.asked) return;
    this.asked = mark;
    this.whole.replaceChildren(make("div", "nbf-empty", "loading…"));
    this.panel.link.ask(
      { type: "error" },
      (answer) => {
        if (mark !== this.asked) return;
        if (answer.ok && answer.failure) this.whole.replaceChildren(...errorParts(answer.failure));
        else this.whole.replaceChildren(make("div", "nbf-empty", answer.ok ? "this error is gone" : String(answer.error)));
      },
      () => {
        if (mark === this.asked) this.whole.replaceChildren(make("div", "nbf-empty", "No answer from the kernel yet: busy, or restarted."));
        this.asked = "";
      },
    );
  }

  update() {
    const { head, output, traceback, place } = this.panel.state();
    let line = { icon: "", tone: "", text: "" };
    if (head.error) line = { icon: "failed", tone: "red", text: `${head.error.type}: ${head.error.message}` };
    else if (head.held) line = { icon: "interrupted", tone: "orange", text: `the workflow loop is held by ${head.held}` };
    else if (head.interrupted) line = { icon: "interrupted", tone: "orange", text: head.interrupted };
    else if (head.status === "complete" && output) line = { icon: "done", tone: "green", text: `output ${output}` };
    else if (!head.here && head.owner && !FINISHED.includes(head.status)) {
      const where = head.alive === false ? "its kernel is gone: " : "runs in another kernel: ";
      line = { icon: "interrupted", tone: "muted", text: `${where}${head.owner}` };
    }
    show(this.root, line.text !== "");
    this.root.dataset.tone = line.tone;
    setIcon(this.icon, line.icon);
    setText(this.text, line.text);
    setText(this.place, head.error ? (place ?? "") : "");
    show(this.more, Boolean(head.error && traceback));
    if (!head.error) this.open(false);
    else if (!this.whole.hidden) this.ask();
  }
}

/** The entries of the instance, newest first. */
class EventsView {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.root = make("div", "nbf-events");
    this.bar = make("div", "nbf-toolbar");
    const label = make("label", "nbf-radio");
    this.steps = /** @type {HTMLInputElement} */ (make("input", "", "", { type: "checkbox" }));
    label.append(this.steps, make("span", "", "those of steps too"));
    this.count = make("span", "nbf-shown");
    this.bar.append(this.count, label);
    this.steps.addEventListener("change", () => this.open());
    this.body = make("div", "nbf-scroll", "", { tabindex: "0", role: "group", "aria-label": "Events" });
    this.table = make("table", "nbf-table nbf-listing");
    this.more = makeButton("Older", "", "nbf-small");
    this.more.addEventListener("click", () => this.ask(this.stop));
    this.body.append(this.table, this.more);
    this.root.append(this.body);
    this.version = -1;
    this.stop = 0;
  }

  open() {
    this.version = this.panel.state().head.version;
    this.ask(0);
  }

  /** Ask again where something is new, as long as the newest are shown. */
  update() {
    if (this.version !== this.panel.state().head.version && this.stop <= PAGE) this.open();
  }

  /** @param {number} start */
  ask(start) {
    const steps = this.steps.checked;
    this.panel.link.ask({ type: "events", start, stop: start + PAGE, steps }, (answer) => {
      if (!answer.ok) return this.panel.notice(String(answer.error));
      if (steps !== this.steps.checked) return;
      const { total, items } = answer.events;
      this.stop = start + items.length;
      const lines = items.map((/** @type {any} */ item) => this.line(item));
      if (start === 0) this.table.replaceChildren(headLine(["When", "What", "Step", "Note", "By"]), ...lines);
      else this.table.append(...lines);
      setText(this.count, `${thousands(total)} event${total === 1 ? "" : "s"}`);
      show(this.more, this.stop < total);
    });
  }

  /** @param {any} item */
  line(item) {
    const line = make("tr");
    const now = this.panel.link.now();
    const when = make("td", "nbf-when", moment(item.at, now, true));
    when.title = new Date(item.at).toLocaleString();
    line.append(when, make("td", "", entryWords(item.kind)), make("td", "", item.step), make("td", "nbf-note", item.note), make("td", "", item.by));
    return line;
  }
}

/** @param {string[]} names */
function headLine(names) {
  const line = make("tr");
  for (const name of names) line.append(make("th", "", name, { scope: "col" }));
  return line;
}

/** What all steps printed and logged. */
class LogView {
  /** @param {Panel} panel */
  constructor(panel) {
    this.panel = panel;
    this.root = make("div", "nbf-scroll nbf-all-logs", "", { tabindex: "0", role: "group", "aria-label": "Log" });
    this.version = -1;
    this.askedAt = 0;
  }

  open() {
    this.version = this.panel.state().head.version;
    this.askedAt = Date.now();
    this.panel.link.ask({ type: "log" }, (answer) => {
      const end = this.root.scrollTop + this.root.clientHeight >= this.root.scrollHeight - 8;
      this.root.replaceChildren(...(answer.ok ? logNodes(answer.log, true) : [make("div", "nbf-empty", String(answer.error))]));
      if (end) this.root.scrollTop = this.root.scrollHeight;
    });
  }

  update() {
    const running = this.panel.state().head.running > 0;
    if ((running || this.version !== this.panel.state().head.version) && Date.now() - this.askedAt > 2000) this.open();
  }
}

/** The workflow's instances, newest first, opening in place. */
class HistoryView {
  /**
   * @param {Panel} panel
   * @param {(instance: any, resume: boolean) => void} onOpen
   */
  constructor(panel, onOpen) {
    this.panel = panel;
    this.onOpen = onOpen;
    this.root = make("div", "nbf-scroll", "", { tabindex: "0", role: "group", "aria-label": "Instances" });
    this.table = make("table", "nbf-table nbf-listing");
    this.root.append(this.table);
    this.askedAt = 0;
    this.seen = "";
  }

  open() {
    this.askedAt = Date.now();
    this.panel.link.ask({ type: "instances" }, (answer) => {
      if (!answer.ok) return this.panel.notice(String(answer.error));
      const seen = JSON.stringify(answer.instances);
      if (seen === this.seen) return;
      this.seen = seen;
      const heads = headLine(["Status", "Instance", "Started", "Took", "Params", "Error", ""]);
      this.table.replaceChildren(heads, ...answer.instances.map((/** @type {any} */ one) => this.line(one)));
    });
  }

  update() {
    if (Date.now() - this.askedAt > 3000) this.open();
  }

  /** @param {any} one */
  line(one) {
    const now = this.panel.link.now();
    const line = make("tr", one.this ? "nbf-this" : "", "", { "data-of": String(one.seq) });
    const { icon, word, tone } = instanceWords(one);
    const status = make("td", "nbf-status", "", { "data-tone": tone });
    status.append(makeIcon(icon), make("span", "", word));
    const took = one.started && one.ended ? duration(one.ended - one.started) : "";
    const id = make("td", "nbf-note", one.id);
    const [params, error] = [one.params, one.error].map((text) => make("td", "nbf-note", text, text ? { title: text } : {}));
    if (one.error) error.dataset.tone = "red";
    const acts = make("td", "nbf-acts");
    if (one.this) acts.append(make("span", "nbf-hint", "shown here"));
    else {
      for (const [label, resume] of /** @type {[string, boolean][]} */ ([["Open", false], ...(word === "Interrupted" ? [["Resume", true]] : [])])) {
        const button = makeButton(label, "", "nbf-small");
        button.setAttribute("aria-label", `${label} ${one.id}`);
        button.addEventListener("click", () => this.onOpen(one, resume));
        acts.append(button);
      }
    }
    line.append(status, id, make("td", "nbf-when", one.started ? moment(one.started, now) : ""), make("td", "nbf-when", took), params, error, acts);
    return line;
  }
}

const VIEWS = ["Steps", "Timeline", "Events", "Log", "History"];

/** The views of an instance below its header: one is shown at a time. */
class Body {
  /**
   * @param {Panel} panel
   * @param {Header} header
   * @param {(instance: any, resume: boolean) => void} onOpen
   */
  constructor(panel, header, onOpen) {
    this.panel = panel;
    this.view = "Steps";
    this.root = make("div", "nbf-body");
    this.tabs = new Tabs("Views", (name) => this.choose(name));
    this.tabs.root.classList.add("nbf-views");
    this.nav = make("div", "nbf-nav");
    this.detail = new StepDetail(panel, () => this.unselect(), () => header.restarting.strip.open(true));
    this.list = new StepList(
      panel,
      (row) => {
        this.detail.open(row);
        header.restarting.select(row);
        this.split.classList.toggle("nbf-split", row !== null);
      },
      () => this.detail.focus(),
    );
    this.events = new EventsView(panel);
    this.log = new LogView(panel);
    this.history = new HistoryView(panel, onOpen);
    this.split = make("div", "nbf-both");
    this.split.append(this.list.root, this.detail.root);
    this.shown = make("div", "nbf-view", "", { role: "tabpanel", id: panel.uid("view") });
    this.shown.append(this.split, this.events.root, this.log.root, this.history.root);
    this.nav.append(this.tabs.root, this.list.bar, this.events.bar);
    this.root.append(this.nav, this.shown);
    this.choose("Steps");
  }

  unselect() {
    this.list.unselect();
    this.list.grid.focus();
  }

  /** @param {string} view */
  choose(view) {
    this.view = view;
    this.tabs.set(VIEWS, view, this.shown.id);
    setAttribute(this.shown, "aria-label", view);
    const steps = view === "Steps" || view === "Timeline";
    show(this.split, steps);
    show(this.list.bar, steps);
    show(this.events.root, view === "Events");
    show(this.events.bar, view === "Events");
    show(this.log.root, view === "Log");
    show(this.history.root, view === "History");
    if (steps) this.list.asTimeline(view === "Timeline");
    else this.other()?.open();
  }

  /** @returns {EventsView | LogView | HistoryView | null} */
  other() {
    return { Events: this.events, Log: this.log, History: this.history }[this.view] ?? null;
  }

  update() {
    this.list.update();
    this.other()?.update();
    const { row } = this.detail;
    if (row) this.detail.refresh([...this.list.known.values()].find((known) => String(known.row.key) === String(row.key))?.row);
  }

  /** @param {number} now */
  tick(now) {
    this.list.tick(now);
    this.detail.tick(now);
    this.other()?.update();
  }
}

// --------------------------------------------------------------------------------------------------------------- render

/**
 * Follow the kernel's status where the host lets us (JupyterLab does): a restart is known at once.
 * @param {any} model
 * @param {(word: string) => void} onGone
 * @returns {() => void}
 */
function watchKernel(model, onGone) {
  try {
    const { kernel } = model.widget_manager;
    const words = { restarting: "restarted", autorestarting: "restarted", terminating: "stopped", dead: "stopped" };
    const changed = (/** @type {unknown} */ _kernel, /** @type {keyof typeof words} */ status) => {
      if (status in words) onGone(words[status]);
    };
    kernel.statusChanged.connect(changed);
    return () => kernel.statusChanged.disconnect(changed);
  } catch {
    return () => {};
  }
}

/**
 * Keep keys from the notebook's shortcuts: `d d` in the panel must not delete the cell. `/` and `a` are the panel's own.
 * @param {HTMLElement} root
 * @param {Body} body
 * @param {Banners} banners
 */
function holdKeys(root, body, banners) {
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const kind of ["keydown", "keyup", "keypress"]) root.addEventListener(kind, (event) => event.stopPropagation());
  root.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = /^(TEXTAREA|SELECT)$/.test(target.tagName) || (target instanceof HTMLInputElement && !/^(checkbox|radio)$/.test(target.type));
    if (event.ctrlKey || event.altKey || event.metaKey || typing) return;
    if (event.key === "/") {
      if (body.view !== "Steps" && body.view !== "Timeline") body.choose("Steps");
      body.list.filter.focus();
    } else if (event.key === "a") banners.first()?.focus();
    else return;
    event.preventDefault();
  });
}

const TWIN = "nbflow-twin-";

/**
 * Which output of the instance a view stands in: its twin, the line above it in the same output area, says so; "" where none does.
 * @param {HTMLElement} el
 */
function displayOf(el) {
  const twins = [...(el.closest(".jp-OutputArea, .output")?.querySelectorAll(`[class*=${TWIN}]`) ?? [])];
  const above = twins.filter((twin) => twin.compareDocumentPosition(el) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
  const name = [...(above?.classList ?? [])].find((one) => one.startsWith(TWIN)) ?? "";
  return name.slice(TWIN.length);
}

/**
 * Draw the panel.
 * @param {{model: any, el: HTMLElement}} view
 * @param {{back?: () => void, resume?: boolean}} [from] the panel that opened it in its place
 * @returns {() => void} takes it away
 */
function render({ model, el }, from = {}) {
  /** @type {State} */
  let state = model.get("state");
  const prefix = `nbf-${unique()}`;
  const link = new Link(model, () => update());
  const speaker = new Speaker();
  const notice = make("div", "nbf-notice", "", { role: "status" });
  const stale = make("div", "nbf-stale", "", { role: "status" });
  let said = "";
  let trouble = "";
  /** @type {(() => void) | null} */
  let inner = null;
  /** @type {Panel} */
  const panel = {
    link,
    state: () => state,
    unheard: () => freshness(link, Date.now()).text,
    notice: (text, tone = "") => {
      said = text;
      notice.dataset.tone = tone;
      setText(notice, text);
      show(notice, text !== "");
    },
    uid: (id) => `${prefix}-${id}`,
    showWaits: () => {
      if (body.view !== "Steps" && body.view !== "Timeline") body.choose("Steps");
      body.list.only("waiting", "wait");
    },
    next: () => banners.first() ?? (isShown(body.list.grid) ? body.list.grid : /** @type {HTMLElement} */ (body.tabs.chosen())),
  };
  const root = make("section", "nbflow", "", { "aria-label": `Workflow ${state.workflow}, instance ${state.id}` });
  const header = new Header(panel);
  const banners = new Banners(panel);
  const outcome = new Outcome(panel);
  const body = new Body(panel, header, openInstance);
  if (from.back) root.append(makeBack(from.back));
  root.append(header.root, stale, notice, banners.root, outcome.root, body.root, speaker.polite, speaker.assertive);
  const hands = new Hands(root, panel.next);
  holdKeys(root, body, banners);
  header.close.addEventListener("click", () => (from.back ? from.back() : closePanel()));
  el.append(root);

  function closePanel() {
    const message = { type: "close", display: displayOf(el) };
    if (freshness(link, Date.now()).live) click(panel, header.close, message, (answer) => answer.ok && leave());
    else leave(); // nobody is there to empty the output: it is at least out of sight
  }

  /** Take this view away. */
  function leave() {
    inner?.();
    inner = null;
    clearInterval(timer);
    unwatch();
    hands.close();
    if (root.contains(hands.page().activeElement)) /** @type {HTMLElement | null} */ (el.closest("[tabindex]"))?.focus();
    link.close();
    model.off("change:state", onState);
    model.off("msg:custom", onMessage);
    root.remove();
  }

  /**
   * Draw another instance in place of this one.
   * @param {any} instance
   * @param {boolean} resume
   */
  function openInstance(instance, resume) {
    link.ask({ type: "open", instance: instance.seq }, async (answer) => {
      if (!answer.ok) return panel.notice(String(answer.error));
      try {
        const other = await model.widget_manager.get_model(answer.model);
        const close = render({ model: other, el }, { back, resume });
        inner = close;
      } catch {
        panel.notice(`This notebook can't open it in place; in a cell: %workflow show ${instance.id}`);
        return;
      }
      root.hidden = true;
      /** @type {HTMLElement | null} */ (el.querySelector(".nbflow:not([hidden]) .nbf-back button"))?.focus();
    });
  }

  function back() {
    inner?.();
    inner = null;
    root.hidden = false;
    body.history.open();
    body.tabs.chosen()?.focus();
  }

  function tick() {
    const { live, grey, text } = freshness(link, Date.now());
    root.classList.toggle("nbf-grey", grey);
    setText(stale, text);
    show(stale, text !== "");
    setAttribute(root, "data-live", String(live));
    const now = link.now();
    if (grey) return;
    header.tick(now);
    for (const banner of banners.shown.values()) banner.tick(now);
    body.tick(now);
    if (live && from.resume) {
      from.resume = false;
      header.resume.click();
    }
  }

  function update() {
    const now = link.now();
    header.update(now);
    banners.update(now);
    outcome.update();
    body.update();
    const { head, waits } = state;
    speaker.say(`${statusWords(head).word}: ${progress(head, null)[0]}`);
    if (head.error) speaker.shout(`failed: ${head.error.type}`);
    else if (waits.length && head.status === "waiting") speaker.shout(`waiting for you: ${waits[0].name}`);
    else speaker.shout("");
    tick();
  }

  function onState() {
    /** @type {State} */
    const next = model.get("state");
    if (!next || next.seq < state.seq) return;
    state = next;
    link.hear(next);
    update();
  }

  /** @param {any} message */
  function onMessage(message) {
    if (!message || typeof message !== "object") return;
    if (message.type === "closed") return void (message.display && message.display === displayOf(el) && leave());
    if (message.type === "answer") {
      link.news = Date.now();
      link.drop(message.id)?.done(message);
    } else if (message.type === "alive") {
      link.hear(message);
      if (message.head) state = { ...state, head: { ...state.head, ...message.head } };
      if (message.trouble !== undefined && (message.trouble || trouble === said)) {
        trouble = message.trouble;
        panel.notice(trouble);
      }
    }
    update();
  }

  model.on("change:state", onState);
  model.on("msg:custom", onMessage);
  const unwatch = watchKernel(model, (word) => {
    link.kernel = word;
    update();
  });
  const timer = setInterval(() => {
    link.tick();
    const before = stale.textContent;
    tick();
    if (before !== stale.textContent) update();
  }, 1000);
  panel.notice("");
  update();
  requestAnimationFrame(() => body.list.draw());
  link.hello();
  return leave;
}

/** @param {() => void} back */
function makeBack(back) {
  const strip = make("div", "nbf-back");
  const button = makeButton("Back", "left", "nbf-small");
  button.addEventListener("click", back);
  strip.append(button);
  return strip;
}

export default { render };
