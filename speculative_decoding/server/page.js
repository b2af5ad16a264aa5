"use strict";

const byId = (id) => document.getElementById(id);
const REPEATS = 3; // per comparison: a server's first responses take longer, and single measurements vary
let running = null; // the AbortController of the current request

const headers = () => {
  const token = byId("token").value;
  const authorization = token ? { Authorization: `Bearer ${token}` } : {};
  return { "Content-Type": "application/json", ...authorization };
};

function appendSpan(parent, kind, text) {
  if (!text) return;
  const element = document.createElement(kind === "rejected" ? "s" : "span");
  element.className = kind;
  element.textContent = text;
  parent.append(element);
}

// Show the accepted tokens of a round, then its rejected draft tokens, then the target's token that replaces them.
function showRound(round, parent) {
  round.texts.forEach((text, i) => {
    if (i === round.accepted) appendSpan(parent, "rejected", round.rejected);
    appendSpan(parent, i < round.accepted ? "accepted" : "target", text);
  });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

async function checked(response) {
  if (response.ok) return response;
  if (response.status === 401) { byId("token-label").hidden = false; byId("token").focus(); }
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `The server answered with status ${response.status}.`);
}

// Generate one text. Returns its usage, its seed and the milliseconds from the request to the last token.
async function generate(fields, parent) {
  const started = performance.now();
  const response = await checked(await fetch("/v1/completions", {
    method: "POST", headers: headers(), signal: running.signal,
    body: JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true }, rounds: true }),
  }));
  let usage = null, seed = null, ended = started;
  for await (const event of events(response)) {
    if (event === "[DONE]") return { usage, seed, milliseconds: ended - started };
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      showRound(choice.round, parent);
      seed = choice.seed ?? seed;
      ended = performance.now();
    }
  }
  throw new Error("The connection was closed before the end of the output.");
}

function summary({ usage, milliseconds }) {
  const { accepted_tokens: accepted, drafted_tokens: drafted } = usage;
  const perCall = (usage.completion_tokens / usage.target_calls).toFixed(2);
  const draft = drafted ? `; accepted ${accepted} of ${drafted} draft tokens` : "";
  return `${usage.completion_tokens} tokens in ${milliseconds.toFixed(0)} ms; ${perCall} tokens per target call${draft}`;
}

// Generate two texts alternately, without showing them. Returns the median milliseconds of each.
async function medianMilliseconds(fields, baselineFields) {
  const times = [[], []];
  for (let i = 0; i < 2 * REPEATS; i++) {
    const { milliseconds } = await generate(i % 2 ? baselineFields : fields, document.createElement("p"));
    times[i % 2].push(milliseconds);
  }
  return times.map((each) => each.sort((a, b) => a - b)[(REPEATS - 1) / 2]);
}

function showError(error) {
  if (error.name === "AbortError") byId("summary").textContent = "Stopped.";
  else if (error instanceof TypeError) byId("problem").textContent = "The server cannot be reached. Is it running?";
  else byId("problem").textContent = error.message;
}

async function run() {
  if (running || !byId("form").reportValidity()) return;
  running = new AbortController();
  byId("generate").disabled = true;
  byId("stop").disabled = false;
  for (const id of ["output", "summary", "baseline", "comparison", "problem"]) byId(id).textContent = "";
  byId("baseline-section").hidden = !byId("compare").checked;
  const fields = { prompt: byId("prompt").value, max_tokens: byId("max-tokens").valueAsNumber, temperature: byId("temperature").valueAsNumber };
  try {
    const speculative = await generate(fields, byId("output"));
    byId("summary").textContent = summary(speculative);
    if (byId("compare").checked) {
      if (speculative.seed !== null) fields.seed = speculative.seed;
      const baselineFields = { ...fields, num_draft_tokens: 0 };
      const baseline = await generate(baselineFields, byId("baseline"));
      byId("comparison").textContent = "Measuring the speedup...";
      [speculative.milliseconds, baseline.milliseconds] = await medianMilliseconds(fields, baselineFields);
      const speedup = (baseline.milliseconds / speculative.milliseconds).toFixed(2);
      byId("summary").textContent = summary(speculative);
      byId("comparison").textContent = `${summary(baseline)}; speedup ${speedup}x (medians of ${REPEATS} repeats)`;
    }
  } catch (error) {
    showError(error);
  } finally {
    running = null;
    byId("generate").disabled = false;
    byId("stop").disabled = true;
  }
}

byId("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
byId("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
});
fetch("/health").then((response) => response.json()).then((health) => {
  if (health.status !== "ok") byId("problem").textContent = `The server is ${health.status}.`;
}).catch(showError);
