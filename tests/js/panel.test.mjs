// The panel's words and arithmetic. Run by `node --test tests/js/*.mjs`; the page itself is tested in tests/browser.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

const source = await readFile(new URL("../../nbflow/jupyter/static/panel.js", import.meta.url), "utf8");
const panel = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);

const NOW = Date.UTC(2030, 0, 1, 12);
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;

const head = (more = {}) => ({
  status: "running", settled: false, here: true, owner: "", alive: true, started: NOW - 724 * SECOND, ended: null, changed: NOW,
  done: 12, total: 34, running: 1, retrying: 0, failed: 0, waiting: 0, replayed: 0, unreached: 0, sleeping: null,
  interrupted: null, error: null, version: 1, ...more,
});
const row = (more = {}) => ({ i: 0, key: ["do", "load", 1, null], state: "running", started: NOW - 2400, ...more });

test("the module exports a render and touches no page when it is loaded", () => {
  assert.equal(typeof panel.default.render, "function");
});

test("the module has no imports and writes no markup", () => {
  assert.doesNotMatch(source, /^\s*import\s/m);
  assert.doesNotMatch(source, /\bimport\(/);
  assert.doesNotMatch(source, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment/);
});

test("durations have two units at most and never go below zero", () => {
  const said = [12, 400, 9940, 12_000, 59_400, 724_000, 3 * HOUR + 51 * MINUTE, 52 * HOUR, -5].map((ms) => panel.duration(ms));
  assert.deepEqual(said, ["12ms", "0.4s", "9.9s", "12s", "59s", "12m04s", "3h51m", "2d 4h", "0ms"]);
  assert.equal(panel.duration(2999, true), "2s");
  assert.equal(panel.duration(-1, true), "0s");
});

test("numbers have commas at thousands", () => {
  assert.deepEqual([0, 999, 1000, 4102, 1234567].map(panel.thousands), ["0", "999", "1,000", "4,102", "1,234,567"]);
});

test("a waiting instance says whether it waits for a person, a clock or a retry", () => {
  const word = (more) => panel.statusWords(head({ status: "waiting", running: 0, ...more })).word;
  assert.equal(word({ waiting: 1 }), "Waiting for you");
  assert.equal(word({ sleeping: ["cool-down", "sleep", NOW] }), "Sleeping");
  assert.equal(word({ sleeping: ["load", "retry", NOW] }), "Retrying");
  assert.equal(word({ waiting: 1, sleeping: ["load", "retry", NOW] }), "Waiting for you");
  assert.equal(panel.statusWords(head({ interrupted: "needs class Doc" })).word, "Interrupted");
  assert.equal(panel.statusWords(head({ status: "something new" })).word, "something new");
});

test("an instance in the list of instances stands as in its own header", () => {
  for (const more of [{ waiting: 1 }, { sleeping: ["cool-down", "sleep", NOW] }, { sleeping: ["load", "retry", NOW] }, {}]) {
    const listed = panel.instanceWords({ status: "waiting", interrupted: false, ...more });
    assert.deepEqual(listed, panel.statusWords(head({ status: "waiting", running: 0, waiting: 0, ...more })));
  }
  assert.deepEqual(panel.instanceWords({ status: "waiting", interrupted: false, waiting: 2 }), { icon: "waiting", word: "Waiting for you", tone: "pink" });
  assert.equal(panel.instanceWords({ status: "waiting", interrupted: true, waiting: 1 }).word, "Interrupted");
  assert.equal(panel.instanceWords({ status: "complete", interrupted: true }).word, "Complete");
});

test("every state of a step has a shape, a word and a tone, and no two the same shape and tone", () => {
  const states = ["running", "retrying", "sleeping", "waiting", "finished", "failed", "cancelled", "interrupted"];
  const seen = new Set();
  for (const state of states) {
    const { icon, tone, text } = panel.stepWords(row({ state }), NOW);
    assert.ok(icon && tone && text, state);
    seen.add(`${icon} ${tone}`);
  }
  assert.equal(seen.size, states.length);
});

test("a row says attempts, deadlines and history in words", () => {
  const text = (more) => panel.stepWords(row(more), NOW).text;
  assert.equal(text({ state: "running", attempt: 1, limit: 6 }), "running");
  assert.equal(text({ state: "running", attempt: 2, limit: 6 }), "running · attempt 2 of 6");
  assert.equal(text({ state: "retrying", attempt: 3, limit: 6, due: NOW + 17_000 }), "attempt 3 of 6 · next in 17s");
  assert.equal(text({ state: "sleeping", due: NOW + 3 * MINUTE }), "wakes in 3m00s");
  assert.equal(text({ state: "waiting", due: NOW + 47 * HOUR }), "waiting · 1d 23h left");
  assert.equal(text({ state: "finished", ended: NOW, replayed: true }), "from history");
  assert.equal(text({ state: "finished", ended: NOW, stale: true, replayed: true }), "code changed");
  assert.equal(text({ state: "finished", ended: NOW, attempt: 2, limit: 6 }), "done · attempt 2 of 6");
  assert.equal(text({ state: "failed", attempt: 6, limit: 6 }), "failed after 6 attempts");
  assert.equal(text({ state: "finished", unreached: true }), "not reached by the present code");
  assert.equal(text({ state: "failed", attempt: 2, abandoned: true }), "failed after 2 attempts · still running in its thread");
  const undone = (state, more = {}) => text({ key: ["rollback", "load", 1, null], state, ...more });
  assert.deepEqual(["running", "finished", "failed"].map((state) => undone(state)), ["rolling back", "rolled back", "rollback failed"]);
});

test("elapsed counts from absolute times and stops at the end", () => {
  assert.equal(panel.elapsed(head(), NOW), "12m04s");
  assert.equal(panel.elapsed(head({ ended: NOW - 720_000 }), NOW), "4.0s");
  assert.equal(panel.elapsed(head({ started: null }), NOW), "");
  assert.equal(panel.stepTime(row(), NOW), "2s");
  assert.equal(panel.stepTime(row({ ended: NOW }), NOW), "2.4s");
});

test("a step's name shows its count and the key of a map item", () => {
  assert.equal(panel.stepName(["do", "load", 1, null]), "load");
  assert.equal(panel.stepName(["do", "load", 3, null]), "load #3");
  assert.equal(panel.stepName(["map", "embed", 1, "00813"]), "embed[00813]");
});

test("the progress line says only what there is", () => {
  assert.deepEqual(panel.progress(head(), null), ["12/34 steps"]);
  assert.deepEqual(panel.progress(head({ retrying: 2, waiting: 1, replayed: 7 }), 0.5), [
    "12/34 steps", "2 retrying", "1 waiting", "7 from history", "30/min", "about 42s left",
  ]);
  assert.deepEqual(panel.progress(head({ done: 1, total: 1 }), null), ["1 step"]);
  const work = { done: 812, total: 4102, running: 16, retrying: 3, failed: 0 };
  assert.deepEqual(panel.progress(head({ done: 1, total: 2, work }), 10), ["812/4,102 steps", "3 retrying", "10.0/s", "about 5m29s left"]);
  assert.equal(panel.progress(head({ done: 1, total: 2, work: { ...work, total: null } }), null)[0], "812 steps so far");
  const shares = Object.fromEntries(panel.barShares(head({ replayed: 0, waiting: 0, work })).map(({ tone, share }) => [tone, share]));
  assert.equal(shares.done, 812 / 4102);
  assert.equal(shares.running, 16 / 4102);
  const undone = { status: "errored", done: 1, total: 2, failed: 1, failed_items: 2 };
  assert.deepEqual(panel.progress(head({ ...undone, rollback: "complete" }), null), ["1/2 steps", "1 failed", "2 items failed", "rolled back"]);
  assert.equal(panel.progress(head({ ...undone, rollback: "failed" }), null).at(-1), "rollback failed");
  assert.deepEqual(panel.progress(head({ status: "complete", done: 34, failed: 0 }), 3), ["34 steps"]);
  assert.deepEqual(panel.progress(head({ unreached: 2 }), null).at(-1), "2 not reached by the present code");
});

test("the rate is of the last minute, and of nothing before there is enough", () => {
  let samples = [];
  assert.equal(panel.rateOf(samples), null);
  for (let second = 0; second <= 120; second++) samples = panel.sampled(samples, NOW + second * SECOND, second < 60 ? 0 : (second - 60) * 4);
  assert.ok(samples.length <= 61);
  assert.equal(panel.rateOf(samples), 4);
  assert.deepEqual(panel.sampled(samples, NOW + 121 * SECOND, 3), [{ at: NOW + 121 * SECOND, done: 3 }]);
  assert.equal(panel.rateOf([{ at: NOW, done: 0 }, { at: NOW + SECOND, done: 9 }]), null);
});

test("the bar's shares never exceed the whole", () => {
  const shares = panel.barShares(head({ done: 10, total: 20, replayed: 4, failed: 2, retrying: 1, running: 3, waiting: 1 }));
  assert.deepEqual(shares.map(({ tone }) => tone), ["replayed", "done", "failed", "retrying", "running", "waiting"]);
  assert.ok(shares.reduce((sum, { share }) => sum + share, 0) <= 1);
  assert.deepEqual(panel.barShares(head({ done: 0, total: 0, running: 0 })), []);
});

test("a control that can't work says why", () => {
  const of = (more) => panel.controls(head(more));
  assert.deepEqual([of({}).pause, of({}).terminate, of({}).shown], ["", "", "pause"]);
  assert.equal(of({}).resume, "it is not paused");
  for (const status of ["complete", "terminated"]) {
    const can = of({ status });
    assert.match(can.pause, /nothing to pause/);
    assert.match(can.resume, /nothing to resume/);
    assert.match(can.terminate, /nothing to stop/);
  }
  assert.deepEqual([of({ status: "paused" }).resume, of({ status: "paused" }).shown], ["", "resume"]);
  assert.equal(of({ status: "waitingForPause" }).resume, "");
  assert.equal(of({ status: "errored" }).resume, "");
  assert.match(of({ status: "errored" }).terminate, /errored/);
  assert.equal(of({ interrupted: "needs class Doc" }).shown, "resume");
  assert.equal(of({ here: false, owner: "b.ipynb, PID 7", alive: false }).shown, "resume");
  assert.equal(of({ here: false, owner: "b.ipynb, PID 7", alive: true }).shown, "pause");
  assert.match(of({ status: "rollingBack" }).pause, /rollback/);
  assert.equal(of({ retrying: 1 }).retry_now, "");
});

test("Approve and Reject send approved, or what a lone yes or no asks for, and nothing else has them", () => {
  const pair = (schema) => panel.formOf(schema)?.pair;
  const object = (properties) => ({ type: "object", properties, required: Object.keys(properties) });
  assert.deepEqual(pair(null), ["approved"]);
  assert.deepEqual(pair(undefined), ["approved"]);
  assert.deepEqual(pair({ type: "boolean" }), []);
  assert.deepEqual(pair(object({ publish: { type: "boolean" } })), ["publish"]);
  assert.deepEqual(pair(object({ approved: { type: "boolean" }, reason: { type: "string" } })), ["approved"]);
  assert.equal(pair(object({ urgent: { type: "boolean" }, reason: { type: "string" } })), null);
  assert.equal(pair(object({ approved: { type: "boolean" }, ok: { type: "boolean" } })), null);
  assert.equal(pair({ type: "string" }), null);
  assert.equal(panel.formOf({}), null);
  assert.equal(panel.formOf(true), null);
});

const REVIEW = {
  $defs: {
    Target: { title: "Target", enum: ["prod", "test"] },
    Size: { title: "Size", type: "object", properties: { rows: { type: "integer" }, unit: { type: "string", default: "MB" } }, required: ["rows"] },
  },
  type: "object",
  properties: {
    approved: { type: "boolean" },
    reason: { type: "string", maxLength: 2000, description: "one sentence" },
    sample_size: { type: "integer", minimum: 1, exclusiveMaximum: 1001, default: 500 },
    share: { type: "number", multipleOf: 0.25 },
    target: { $ref: "#/$defs/Target", default: "test" },
    shard: { enum: [1, 2, 3, 4, 5] },
    day: { anyOf: [{ type: "string", format: "date" }, { type: "null" }], default: null },
    at: { type: "string", format: "date-time" },
    size: { $ref: "#/$defs/Size" },
    limits: { anyOf: [{ $ref: "#/$defs/Size" }, { type: "null" }], default: null },
    tags: { type: "array", items: { type: "string" }, default: ["a", "b"] },
    weights: { type: "array", items: { type: "number" } },
    extra: { type: "object", additionalProperties: { type: "integer" }, default: {} },
    either: { anyOf: [{ type: "integer" }, { type: "string" }] },
    only: { const: "x" },
  },
  required: ["approved", "reason", "at", "size", "share", "either", "shard"],
};

test("a form has a field of the right kind for each part of a schema, with its bounds and its default", () => {
  const { fields, pair } = panel.formOf(REVIEW);
  const kinds = Object.fromEntries(fields.map((field) => [field.path[0], field.kind]));
  assert.deepEqual(pair, ["approved"]);
  assert.deepEqual(kinds, {
    approved: "bool", reason: "long", sample_size: "integer", share: "number", target: "choice", shard: "choice", day: "date",
    at: "datetime", size: "group", limits: "group", tags: "list", weights: "list", extra: "json", either: "json", only: "choice",
  });
  const of = (name) => fields.find((field) => field.path[0] === name);
  assert.deepEqual([of("sample_size").min, of("sample_size").max, of("sample_size").step, of("sample_size").value], [1, 1000, 1, 500]);
  assert.deepEqual([of("share").step, of("reason").hint, of("sample_size").label], [0.25, "one sentence", "sample size"]);
  assert.deepEqual([of("day").unset, of("weights").unset, of("only").unset, of("reason").unset, of("limits").unset], ["null", "omit", "omit", "", "null"]);
  assert.deepEqual(of("size").fields.map((field) => [field.path, field.kind, field.value]), [
    [["size", "rows"], "integer", undefined], [["size", "unit"], "text", "MB"],
  ]);
  assert.deepEqual(fields.map(panel.firstRaw).slice(2, 6), ["500", "", "1", ""]);
  assert.equal(panel.firstRaw(of("tags")), "a\nb");
});

test("two levels of nesting, unknown kinds and broken references fall back to a JSON box", () => {
  const inner = { type: "object", properties: { x: { type: "object", properties: { y: { type: "integer" } } } } };
  const { fields } = panel.formOf({ type: "object", properties: { deep: inner, gone: { $ref: "#/$defs/Gone" }, many: { type: "array", items: inner } } });
  assert.deepEqual(fields.map((field) => field.kind), ["group", "json", "json"]);
  assert.deepEqual(fields[0].fields.map((field) => field.kind), ["json"]);
  const self = { $defs: { A: { $ref: "#/$defs/A" } }, $ref: "#/$defs/A" };
  assert.doesNotThrow(() => panel.formOf(self));
});

test("the arrows of a number offer what fits: bounds and steps that are values themselves", () => {
  const range = (more) => {
    const { min, max, step } = panel.formOf({ type: "object", properties: { n: { type: "integer", ...more } } }).fields[0];
    return [min, max, step];
  };
  assert.deepEqual(range({}), [undefined, undefined, 1]);
  assert.deepEqual(range({ minimum: 1, multipleOf: 2 }), [2, undefined, 2]);
  assert.deepEqual(range({ minimum: 2, maximum: 9, multipleOf: 2 }), [2, 8, 2]);
  assert.deepEqual(range({ exclusiveMinimum: 2, exclusiveMaximum: 10, multipleOf: 2 }), [4, 8, 2]);
  assert.deepEqual(range({ exclusiveMinimum: -3, exclusiveMaximum: 3, multipleOf: 3 }), [0, 0, 3]);
  assert.deepEqual(range({ minimum: 1.5, exclusiveMaximum: 4.5 }), [2, 4, 1]);
  assert.deepEqual(range({ minimum: 1, exclusiveMinimum: 5 }), [6, undefined, 1]);
  assert.deepEqual(range({ minimum: 1, multipleOf: 0.5 }), [1, undefined, 1]);
  assert.deepEqual(range({ minimum: 1, multipleOf: 1.5 }), [3, undefined, 3]);
  const real = (more) => range({ type: "number", ...more });
  assert.deepEqual(real({ minimum: 0.25, maximum: 0.95, multipleOf: 0.1 }), [0.3, 0.9, 0.1]);
  assert.deepEqual(real({ minimum: 0.3, maximum: 0.7, multipleOf: 0.1 }), [0.3, 0.7, 0.1]);
  assert.deepEqual(real({ exclusiveMinimum: 0, exclusiveMaximum: 1, multipleOf: 0.25 }), [0.25, 0.75, 0.25]);
  assert.deepEqual(real({ exclusiveMinimum: 0.3, multipleOf: 0.1 }), [0.4, undefined, 0.1]);
  assert.deepEqual(real({ minimum: 0.5, maximum: 2 }), [0.5, 2, "any"]);
  const [low, high, step] = real({ exclusiveMinimum: 0, exclusiveMaximum: 1 });
  assert.ok(low > 0 && high < 1 && low < 0.001 && high > 0.999 && step === "any");
});

test("a secret is typed unseen, and one that may be left out is", () => {
  const secret = { type: "string", format: "password", writeOnly: true };
  const nullable = { anyOf: [secret, { type: "null" }], default: null };
  const schema = { type: "object", properties: { user: { type: "string" }, token: secret, pin: { type: "integer", writeOnly: true }, maybe: nullable }, required: ["user"] };
  const told = panel.formOf(schema).fields.map(({ kind, secret, unset, value }) => [kind, Boolean(secret), unset, value]);
  assert.deepEqual(told, [["text", false, "", undefined], ["text", true, "omit", undefined], ["integer", true, "omit", undefined], ["text", true, "null", null]]);
  assert.deepEqual(panel.skeleton(schema), { user: "" });
  assert.deepEqual(panel.skeleton({ ...schema, required: ["token"] }), { user: "", token: "" });
});

test("lone moments have their own fields, and an empty box is no answer where none is empty", () => {
  const field = (more) => panel.formOf({ type: "string", ...more }).fields[0];
  const read = (more, raw) => panel.readField(field(more), raw);
  assert.deepEqual(["date-time", "date", "time", "partial-time"].map((format) => field({ format }).kind), ["datetime", "date", "time", "time"]);
  assert.equal(panel.formOf({ anyOf: [{ type: "string", format: "date-time" }, { type: "null" }] }).fields[0].kind, "datetime");
  for (const format of ["date-time", "date", "time", "uuid", "uuid4", "decimal", "duration", "email", "name-email", "ipv4", "ipvanyaddress", "hostname", "uri", "iri"]) {
    assert.equal(read({ format }, "").ok, false, format);
  }
  for (const format of [undefined, "textarea", "password", "regex", "json-pointer", "uri-reference", "base64"]) {
    assert.deepEqual(read({ format }, ""), { ok: true, value: "" });
  }
  assert.equal(field({ format: "duration" }).hint, "a duration, such as PT90S, P1D or 1:30:00");
  assert.equal(field({ contentEncoding: "base64", description: "the key" }).hint, "the key · in base64");
});

test("a pattern that may take for ever is left to the kernel", () => {
  const of = (pattern) => panel.formOf({ type: "object", properties: { x: { type: "string", pattern } } }).fields[0].pattern;
  assert.equal(of("^[a-z]+-[0-9]{4}$"), "^[a-z]+-[0-9]{4}$");
  for (const pattern of ["^(a+)+$", "(a|a)*b", "(.)\\1", "x".repeat(300), 5, null]) assert.equal(of(pattern), undefined);
});

test("what stands in a field becomes the payload's value or says what is wrong with it", () => {
  const read = (kind, raw, more = {}) => {
    const found = panel.readField({ kind, path: ["x"], label: "", hint: "", required: true, unset: "", value: undefined, ...more }, raw);
    return found.ok ? found.value : `! ${found.error}`;
  };
  assert.equal(read("integer", " 12 "), 12);
  assert.equal(read("integer", "1.5"), "! 1.5 is not a whole number");
  assert.equal(read("integer", ""), "! a number is missing");
  assert.deepEqual(read("integer", "90071992547409931"), new panel.Exact("90071992547409931"));
  assert.deepEqual(read("integer", "-0090071992547409931"), new panel.Exact("-90071992547409931"));
  assert.equal(read("integer", "1e30"), "! too large a number to be sent exactly: write all of its digits");
  assert.deepEqual(["1.0", "1", ".5", "0.10"].map((text) => panel.writePayload(read("number", text))), ["1.0", "1", "0.5", "0.10"]);
  assert.equal(read("number", "1e400"), "! 1e400 is not a number");
  assert.deepEqual(read("json", ' {"n": 1e400} '), new panel.Exact('{"n": 1e400}'));
  assert.equal(Number(read("number", "1e-3")), 0.001);
  assert.equal(read("number", "x"), "! x is not a number");
  assert.equal(read("choice", "1", { choices: ["a", 7] }), 7);
  assert.equal(read("choice", "", { choices: ["a"] }), "! choose one");
  assert.equal(read("bool", true), true);
  assert.equal(read("text", " a "), " a ");
  assert.equal(read("date", "2026-12-01"), "2026-12-01");
  assert.equal(read("date", ""), "! choose a date");
  assert.match(read("datetime", "2026-12-01T10:00"), /^2026-12-01T10:00:00[+-]\d\d:\d\d$/);
  assert.deepEqual(read("list", "a\n b\n\n", { item: "text" }), ["a", " b"]);
  assert.deepEqual(read("list", "1\n\n2.5", { item: "number" }), [1, 2.5]);
  assert.equal(read("list", "1\nx", { item: "number" }), "! line 2: x is not a number");
  assert.match(read("json", "{"), /^! not JSON/);
});

test("a moment without a time zone stays without one, and what nobody has changed goes back as it came", () => {
  const field = (given) => panel.formOf({ type: "object", properties: { at: { type: "string", format: "date-time", default: given } } }).fields[0];
  const read = (given, raw) => panel.readField(field(given), raw).value;
  const shown = (given) => panel.firstRaw(field(given)).replace(/:00$/, ""); // a browser leaves out seconds that are 0
  for (const given of ["2026-12-01T10:30:00", "2026-12-01 10:30:00", "2026-12-01T10:30:00.123456", "2026-12-01T10:30:00+02:00", "2026-12-01T10:30:07Z"]) {
    assert.equal(read(given, shown(given)), given);
    assert.equal(read(given, panel.firstRaw(field(given))), given);
  }
  assert.equal(read("2026-12-01T10:30:00", "2026-12-01T11:45"), "2026-12-01T11:45:00");
  assert.equal(read("2026-12-01T10:30:00", "2026-12-01T11:45:09"), "2026-12-01T11:45:09");
  for (const given of ["2026-12-01T10:30:00+02:00", undefined, null]) {
    const sent = read(given, "2027-01-01T00:00");
    assert.match(sent, /^2027-01-01T00:00:00[+-]\d\d:\d\d$/);
    assert.equal(new Date(sent).getTime(), new Date("2027-01-01T00:00").getTime());
  }
  assert.equal(field("2026-12-01T10:30:00").hint, "without a time zone");
  assert.equal(field(undefined).hint, "in this browser's time zone");
});

test("times of day and lists that nobody has changed go back as they came too", () => {
  const field = (more) => panel.formOf({ type: "object", properties: { it: more } }).fields[0];
  const time = (given, raw) => panel.readField(field({ type: "string", format: "time", default: given }), raw).value;
  for (const [given, shown] of [["10:30:00", "10:30"], ["10:30:00.5", "10:30"], ["10:30:07+02:00", "10:30:07"], ["10:30Z", "10:30"], ["10:30+02:00", "10:30"]]) {
    assert.equal(panel.firstRaw(field({ type: "string", format: "time", default: given })).replace(/:00$/, ""), shown);
    assert.equal(time(given, shown), given);
  }
  assert.equal(time("10:30:07+02:00", "11:45"), "11:45+02:00");
  assert.equal(time(undefined, "11:45"), "11:45");
  const list = field({ type: "array", items: { type: "string" }, default: ["x", ""] });
  assert.deepEqual(panel.readField(list, "x\n").value, ["x", ""]);
  assert.deepEqual(panel.readField(list, "x\ny\n").value, ["x", "y"]);
});

test("a field's name can't reach into the page's own objects", () => {
  const payload = panel.placed(panel.placed({}, ["__proto__", "hit"], 1), ["constructor"], 2);
  assert.equal({}.hit, undefined);
  assert.equal(JSON.stringify(payload), '{"__proto__":{"hit":1},"constructor":2}');
});

test("the JSON box starts with a payload of the schema's shape", () => {
  const schema = {
    type: "object",
    properties: { reason: { type: "string" }, size: { type: "integer", default: 500 }, target: { enum: ["prod", "test"] }, when: {} },
  };
  assert.deepEqual(panel.skeleton(schema), { reason: "", size: 500, target: "prod", when: null });
  assert.deepEqual(panel.skeleton(null), { approved: true });
});

test("time left is that of steps that will still run: none that failed for good or waits for somebody", () => {
  const left = (more) => panel.progress(head({ done: 4, total: 10, running: 1, ...more }), 1).at(-1);
  assert.equal(left(), "about 6.0s left");
  assert.equal(left({ failed: 2 }), "about 4.0s left");
  assert.equal(left({ failed: 2, waiting: 1 }), "about 3.0s left");
  assert.equal(left({ failed: 2, waiting: 2 }), "1.0/s");
  assert.equal(left({ failed: 1, work: { done: 4, total: 10, running: 1, retrying: 0, failed: 1 } }), "about 5.0s left");
});

test("what has ended without a value says so and promises none", () => {
  const said = ["running", "waiting", "failed", "cancelled", "interrupted"].map((state) => panel.noOutput(row({ state })));
  assert.deepEqual(said, ["no output yet", "no output yet", "no output: it has failed", "no output: it was cancelled", "no output: it was interrupted"]);
  assert.equal(panel.noOutput(row({ state: "waiting" }), head({ status: "rollingBack" })), "no output: it never returns, the instance is rolling back");
});

test("every number of a JSON text is written again as it was", () => {
  for (const text of ['{"order":1152921504606846977,"one":1.0,"far":1e400,"name":"12345678901234567890"}', "[-0,1e-07,0.1,7]", "12345678901234567890", '{"a\\"b":{"c":[1.50,null,true]}}']) {
    assert.equal(panel.writePayload(panel.readPayload(text).payload), text);
  }
  const schema = panel.readPayload('{"type":"object","properties":{"big":{"type":"integer","default":1152921504606846977,"minimum":0.0},"all":{"type":"array","items":{"type":"integer"},"default":[1152921504606846977,2]},"id":{"enum":[9007199254740993,1]}}}').payload;
  assert.equal(panel.writePayload(panel.skeleton(schema)), '{"big":1152921504606846977,"all":[1152921504606846977,2],"id":9007199254740993}');
  const [big, all, id] = panel.formOf(schema).fields;
  assert.equal(panel.writePayload(panel.readField(big, panel.firstRaw(big)).value), "1152921504606846977");
  assert.equal(big.min, 0);
  assert.equal(panel.writePayload(panel.readField(all, panel.firstRaw(all)).value), "[1152921504606846977,2]");
  assert.equal(panel.writePayload(panel.readField(all, "1152921504606846978\n3").value), "[1152921504606846978,3]");
  assert.equal(panel.writePayload(panel.readField(id, "0").value), "9007199254740993");
});

test("the JSON box says what is wrong with its text", () => {
  assert.deepEqual(panel.readPayload('{"a": [1]}'), { ok: true, payload: { a: [1] } });
  assert.deepEqual(panel.readPayload("  "), { ok: true, payload: null });
  assert.match(panel.readPayload("{a: 1}").error, /^not JSON: /);
});

test("fewer than 200 rows are drawn of any number, wherever it is scrolled", () => {
  for (const total of [0, 1, 13, 10_000, 100_000]) {
    for (const top of [0, 11, total * 12, total * 24]) {
      const [first, last] = panel.visibleRange(top, panel.LIST_HEIGHT, total);
      assert.ok(first >= 0 && first <= last && last <= total);
      assert.ok(last - first < 60);
    }
  }
  assert.deepEqual(panel.visibleRange(0, 312, 10_000), [0, 21]);
});

test("missing rows are asked by the page of 200, old ones only as far as they are in sight", () => {
  const known = new Map([...Array(20).keys()].map((index) => [index, 5]));
  const versionOf = (index) => known.get(index);
  assert.equal(panel.toAsk(0, 20, versionOf, 5), null);
  assert.deepEqual(panel.toAsk(0, 20, versionOf, 6), { start: 0, stop: 20, missing: false });
  const ask = panel.toAsk(5000, 5030, versionOf, 5);
  assert.equal(ask.stop - ask.start, 200);
  assert.ok(ask.start <= 5000 && ask.stop >= 5030);
  const edge = panel.toAsk(10, 30, versionOf, 5);
  assert.ok(edge.start <= 20 && edge.stop >= 30);
});

test("the panel is believed only while its own engine is heard", () => {
  const link = { engine: "e", opened: NOW - HOUR, news: NOW - 2 * SECOND, kernel: "", other: false };
  assert.deepEqual(panel.freshness(link, NOW), { live: true, grey: false, text: "" });
  assert.equal(panel.freshness({ ...link, engine: null, opened: NOW - SECOND }, NOW).text, "connecting…");
  assert.match(panel.freshness({ ...link, engine: null, opened: NOW - 4 * SECOND }, NOW).text, /busy, or has restarted/);
  const silent = panel.freshness({ ...link, news: NOW - 16 * SECOND }, NOW);
  assert.ok(silent.grey && !silent.live);
  assert.match(silent.text, /^no news since .*: kernel busy, stopped or restarted\. Run the cell again\.$/);
  assert.match(panel.freshness({ ...link, kernel: "restarted" }, NOW).text, /the kernel was restarted/);
  assert.ok(panel.freshness({ ...link, other: true }, NOW).grey);
});

test("stored previews become parts, and what is unknown or broken is still text", () => {
  const [table] = panel.outputs({ kind: "table", shape: [1024, 2], columns: [{ name: "id", dtype: "int64" }, { name: "t", dtype: "object" }], head: [["1", "a"]], index: ["0"], line: "" });
  assert.equal(table.caption, "table 1,024 × 2 · first 1 rows");
  assert.deepEqual(table.rows, [["0", "1", "a"]]);
  const [heat, array] = panel.outputs({ kind: "array", shape: [3, 4], dtype: "float64", min: 0, mean: 0.123456, max: 1, head: [["0.5118216247", "7", "nan"]], heat: [[0, 255]] });
  assert.deepEqual(array.rows, [["0.51182", "7", "nan"]]);
  assert.equal(heat.caption, "array 3 × 4 · float64 · min 0 · mean 0.1235 · max 1");
  assert.deepEqual([heat.kind, heat.text], ["heat", "0 (light) to 1 (dark)"]);
  assert.equal(panel.outputs({ kind: "image", width: 2, height: 1, png: "aGk=" })[0].kind, "image");
  assert.equal(panel.outputs({ kind: "image", width: 2, height: 1, png: '"><script>' })[0].kind, "none");
  assert.deepEqual(panel.outputs({ kind: "json", text: '{"a": [1]}', line: "" })[0].tree, { a: [1] });
  assert.equal(panel.outputs({ kind: "json", text: "3", line: "3" })[0].text, "3");
  assert.equal(panel.outputs({ kind: "json", text: "{", line: "" })[0].text, "{");
  const file = panel.outputs({ kind: "text", text: "x", file: { uri: "a/b.parquet", size: 1_500_000, hash: "ab12" } }).at(-1);
  assert.deepEqual([file.kind, file.caption, file.text], ["file", "a/b.parquet", "1.5 MB · SHA-256 ab12"]);
  assert.equal(panel.outputs({ kind: "text", text: "<b>", truncated: true })[0].caption, "the beginning of it");
  for (const broken of [null, undefined, 7, { kind: "table" }, { kind: "table", columns: 5, head: [5] }, { kind: "array", head: "x" }, {}]) {
    assert.ok(panel.outputs(broken).length >= 1);
  }
});

test("an instance whose kernel is gone is interrupted and can be resumed", () => {
  const gone = head({ here: false, owner: "a.ipynb, PID 7", alive: false });
  assert.equal(panel.statusWords(gone).word, "Interrupted");
  assert.equal(panel.controls(gone).shown, "resume");
  assert.equal(panel.statusWords({ ...gone, status: "complete" }).word, "Complete");
  assert.equal(panel.statusWords(head({ status: "waitingForPause" })).word, "Pausing");
  assert.match(panel.controls(head({ status: "rollingBack" })).restart, /rolling back/);
});

test("a group says how many are done, how fast and how long still", () => {
  const group = row({ counts: { finished: 812, running: 4, failed: 2 }, total: 4096, rate: 14.2, state: "running" });
  assert.deepEqual(panel.groupWords(group), { count: "812/4,096", note: "2 failed · 14.2/s · about 3m51s left" });
  const late = row({ counts: { finished: 998, retrying: 2 }, total: 1000, rate: 116.1 });
  assert.deepEqual(panel.groupWords(late), { count: "998/1,000", note: "2 retrying · 116.1/s" });
  assert.deepEqual(panel.groupWords(row({ counts: { finished: 30 }, total: 30, replayed: 30 })), { count: "30", note: "30 from history" });
  const map = row({ key: ["map", "embed", 1, null], counts: { finished: 3 }, total: null, rate: 2 });
  assert.deepEqual(panel.groupWords(map), { count: "3 so far", note: "2.0/s" });
  assert.deepEqual(panel.groupShares(map), []);
  const shares = panel.groupShares(group);
  assert.deepEqual(shares.map(({ tone }) => tone), ["done", "failed", "running"]);
  assert.ok(shares.reduce((sum, { share }) => sum + share, 0) <= 1);
});

test("progress is a share where the whole is known, else a count", () => {
  assert.deepEqual(panel.progressWords([61, 100, "pages"]), { share: 0.61, text: "61% pages" });
  assert.deepEqual(panel.progressWords([1200, null, ""]), { share: null, text: "1,200" });
  assert.deepEqual(panel.progressWords([7, 5, ""]), { share: 1, text: "100%" });
  assert.equal(panel.progressWords(undefined), null);
});

test("a row's spans show each attempt and each gap, and what is still ahead", () => {
  const tries = [[NOW - 60_000, NOW - 50_000, "failed"], [NOW - 30_000, NOW - 28_000, "failed"]];
  const found = panel.spans(row({ state: "retrying", started: NOW - 60_000, tries, attempt: 2, due: NOW + 9_000 }), NOW);
  assert.deepEqual(found.map(({ from, to, kind }) => [from - NOW, to - NOW, kind]), [
    [-60_000, -50_000, "failed"], [-50_000, -30_000, "gap"], [-30_000, -28_000, "failed"], [-28_000, 9_000, "gap"],
  ]);
  const sleeping = panel.spans(row({ state: "sleeping", started: NOW - 1_000, due: NOW + 5_000 }), NOW);
  assert.deepEqual(sleeping.map(({ kind }) => kind), ["sleeping", "ahead"]);
  assert.deepEqual(panel.spans(row({ started: null }), NOW), []);
});

test("spans are placed inside their window and never beyond it", () => {
  const window = [1000, 2000];
  assert.deepEqual(panel.placedIn({ from: 1250, to: 1500 }, window), { left: 25, width: 25 });
  assert.deepEqual(panel.placedIn({ from: 0, to: 9000 }, window), { left: 0, width: 100 });
  assert.equal(panel.placedIn({ from: 0, to: 500 }, window), null);
  assert.equal(panel.placedIn({ from: 2500, to: 3000 }, window), null);
});

test("the axis has at most seven round ticks, from a millisecond to years", () => {
  for (const width of [7, 900, 12_000, 724_000, 8 * HOUR, 90 * 24 * HOUR, 20 * 365 * 24 * HOUR]) {
    const found = panel.ticks([NOW, NOW + width], NOW);
    assert.ok(found.length >= 1 && found.length <= 7, `${width}: ${found.length}`);
    assert.equal(found[0].text, "0");
  }
  assert.deepEqual(panel.ticks([NOW, NOW + 12_000], NOW).map(({ text }) => text), ["0", "2s", "4s", "6s", "8s", "10s", "12s"].slice(0, 7));
});

test("zooming keeps its middle and never leaves the whole", () => {
  const whole = [0, 1000];
  assert.deepEqual(panel.zoomed(whole, whole, 0.5, 0, 500), [250, 750]);
  assert.deepEqual(panel.zoomed([250, 750], whole, 1, 0.5, 500), [500, 1000]);
  assert.deepEqual(panel.zoomed([500, 1000], whole, 1, 0.5, 500), [500, 1000]);
  assert.equal(panel.zoomed([250, 750], whole, 2, 0, 500), null);
});

test("a traceback's library frames are apart from the user's", () => {
  const text = 'Traceback (most recent call last):\n  File "Cell [7]", line 12, in embed\n    r = get(url)\n  File "/venv/lib/python3.11/site-packages/httpx/_api.py", line 1, in get\n    raise\nTimeoutError: read timed out';
  const parts = panel.tracebackParts(text);
  assert.deepEqual(parts.map(({ own }) => own), [true, false, true]);
  assert.match(parts[0].lines[1], /Cell \[7\]/);
  assert.deepEqual(parts[2].lines, ["TimeoutError: read timed out"]);
});

test("text of a terminal loses its colours and what was overwritten", () => {
  assert.equal(panel.terminalText("\u001b[31mred\u001b[0m\r\nnext"), "red\nnext");
  assert.equal(panel.terminalText(" 10%\r 50%\r100%\ndone"), "100%\ndone");
});

test("code for a cell is Python whatever the names hold", () => {
  const state = { id: "a'b", workflow: "Ingest" };
  assert.equal(panel.codeFor(state, ["do", "load", 2, null]), 'nbflow.current_engine().get("a\'b", "Ingest").step("load", 2).output');
  const item = panel.codeFor(state, ["map", "embed", 1, "k"]);
  assert.match(item, /^next\(item for item in .*\.items\("embed"\)\[1\] if item\.key\.key == "k"\)\.output$/);
  assert.match(panel.codeFor(state, ["do", '"); import os\n#é', 1, null]), /step\("\\"\); import os\\n#\\u00e9"\)/);
});

test("sizes and entries are said in words", () => {
  assert.deepEqual([0, 1, 999, 1500, 12_000_000].map(panel.sizeWords), ["0 bytes", "1 byte", "999 bytes", "1.5 kB", "12 MB"]);
  assert.equal(panel.entryWords("do.retrying"), "attempt failed, another comes");
  assert.equal(panel.entryWords("wait.started"), "wait started");
  assert.equal(panel.entryWords("something_new"), "something_new");
});

test("a restart begins at steps and at items of maps, and says why not elsewhere", () => {
  const why = (...key) => panel.noRestartFrom({ i: 0, key, state: "finished" });
  assert.equal(why("do", "load", 1, null), "");
  assert.equal(why("map", "embed", 1, null), "");
  assert.equal(why("map", "embed", 1, "00813"), "");
  assert.match(panel.noRestartFrom(null), /^select a step/);
  assert.match(why("do", "many", 0, null), /several steps/);
  assert.match(why("rollback", "pay", 1, null), /undoes a step/);
  assert.equal(why("do", "fetch", 1, "embed[00813]"), "what is selected ran inside embed[00813]: select that");
});

test("what stands still has clocks and rows that stand still", () => {
  const gone = head({ here: false, owner: "a.ipynb, PID 7", alive: false, interrupted: "its kernel is gone", changed: NOW - 600_000 });
  assert.equal(panel.elapsed(gone, NOW), "2m04s");
  assert.equal(panel.elapsed(gone, NOW + 60_000), "2m04s");
  assert.ok(!panel.progress(gone, 14.2).some((part) => /left|\/s/.test(part)));
  assert.ok(!panel.barShares(gone).some(({ tone }) => tone === "running"));
  assert.equal(panel.asLeft(row({ state: "running" }), gone).state, "interrupted");
  assert.equal(panel.asLeft(row({ state: "running" }), head()).state, "running");
  const group = panel.asLeft(row({ state: "running", counts: { finished: 2, running: 3 }, total: 9, rate: 2 }), gone);
  assert.deepEqual([group.counts, panel.groupWords(group).note], [{ finished: 2, interrupted: 3 }, "3 interrupted"]);
});

test("of what nobody can tell from here the panel says where it was last seen, and offers to take it over", () => {
  const doubtful = head({ here: false, owner: "a.ipynb, PID 7 on other", alive: null, interrupted: "last seen in a.ipynb" });
  assert.equal(panel.statusWords(doubtful).word, "Last seen elsewhere");
  assert.equal(panel.controls(doubtful).shown, "resume");
  assert.equal(panel.statusWords({ ...doubtful, status: "paused", interrupted: null }).word, "Paused");
});
