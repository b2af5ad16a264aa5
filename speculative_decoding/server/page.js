"use strict";

const by = (id) => document.getElementById(id);
let running = null; // an AbortController, while something is written

const headers = () => {
  const token = by("token").value;
  return token ? { "Content-Type": "application/json", Authorization: `Bearer ${token}` } : { "Content-Type": "application/json" };
};

function span(parent, kind, text) {
  if (!text) return;
  const made = document.createElement(kind === "rejected" ? "s" : "span");
  made.className = kind;
  made.textContent = text;
  parent.append(made);
}

// Accepted tokens, then in the place of the first that was not: the rejected ones, and the model's own.
function show(round, parent) {
  round.texts.forEach((text, i) => {
    if (i === round.accepted) span(parent, "rejected", round.rejected);
    span(parent, i < round.accepted ? "accepted" : "own", text);
  });
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (waiting + value).split("\n");
    waiting = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

async function answer(response) {
  if (response.ok) return response;
  if (response.status === 401) { by("token-label").hidden = false; by("token").focus(); }
  const found = await response.json().catch(() => null);
  throw new Error(found?.error?.message ?? `the server answered ${response.status}`);
}

// Write one text; gives its usage and the milliseconds from asking to the last token.
async function write(fields, parent) {
  const began = performance.now();
  const response = await answer(await fetch("/v1/completions", {
    method: "POST", headers: headers(), signal: running.signal,
    body: JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true }, rounds: true }),
  }));
  let usage = null, seed = null, ended = began;
  for await (const event of events(response)) {
    if (event === "[DONE]") return { usage, seed, milliseconds: ended - began };
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      show(choice.round, parent);
      seed = choice.seed ?? seed;
      ended = performance.now();
    }
  }
  throw new Error("the connection ended before the text did");
}

function line({ usage, milliseconds }) {
  const details = usage.completion_tokens_details;
  const drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens;
  const perCall = (usage.completion_tokens / usage.target_calls).toFixed(2);
  const kept = drafted ? `; accepted ${details.accepted_prediction_tokens} of ${drafted} drafted tokens` : "";
  return `${usage.completion_tokens} tokens in ${milliseconds.toFixed(0)} ms; ${perCall} tokens per target call${kept}`;
}

function problem(error) {
  if (error.name === "AbortError") by("summary").textContent = "stopped";
  else if (error instanceof TypeError) by("problem").textContent = "The server is gone, or cannot be reached. Is it running?";
  else by("problem").textContent = error.message;
}

async function run() {
  if (running || !by("form").reportValidity()) return;
  running = new AbortController();
  by("write").disabled = true;
  by("stop").disabled = false;
  for (const id of ["text", "summary", "plain", "comparison", "problem"]) by(id).textContent = "";
  by("plain-section").hidden = !by("compare").checked;
  const fields = { prompt: by("prompt").value, max_tokens: by("max-tokens").valueAsNumber, temperature: by("temperature").valueAsNumber };
  if (fields.temperature > 0) fields.acceptance = "coupled"; // so that both ways write the same text
  try {
    const ours = await write(fields, by("text"));
    by("summary").textContent = line(ours);
    if (by("compare").checked) {
      const seed = ours.seed === null ? {} : { seed: ours.seed };
      const plain = await write({ ...fields, ...seed, num_draft_tokens: 0 }, by("plain"));
      const ratio = (plain.milliseconds / ours.milliseconds).toFixed(2);
      by("comparison").textContent = `${line(plain)}; with drafts ${ratio} times as fast`;
    }
  } catch (error) {
    problem(error);
  } finally {
    running = null;
    by("write").disabled = false;
    by("stop").disabled = true;
  }
}

by("form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
by("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
});
fetch("/health").then((response) => response.json()).then((found) => {
  if (found.status !== "ok") by("problem").textContent = `The server is ${found.status}.`;
}).catch(problem);
