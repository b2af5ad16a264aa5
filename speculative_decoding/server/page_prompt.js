// Decodes a single prompt, shows the draft of each round, and compares the output with the baseline.

import { appendSpan, authorization, byId, checked, events, summary } from "./page.js";

const REPEATS = 3; // per comparison, because the first responses take longer and single measurements vary

// Show the accepted tokens of a round, then its rejected draft tokens, then the target's token that replaces them.
function showRound(round, parent) {
  round.texts.forEach((text, i) => {
    if (i === round.accepted) appendSpan(parent, "rejected", round.rejected);
    appendSpan(parent, i < round.accepted ? "accepted" : "target", text);
  });
}

// Generate one text. Returns its usage, its seed, and the time from the request to the last token in milliseconds.
async function generate(fields, parent, signal) {
  const started = performance.now();
  const response = await checked(await fetch("/v1/completions", {
    method: "POST", headers: { "Content-Type": "application/json", ...authorization() }, signal,
    body: JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true }, rounds: true }),
  }));
  let usage = null, seed = null, ended = started;
  for await (const chunk of events(response)) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      showRound(choice.round, parent);
      seed = choice.seed ?? seed;
      ended = performance.now();
    }
  }
  return { usage, seed, milliseconds: ended - started };
}

// Generate two texts alternately, without showing them. Returns the median time of each in milliseconds.
async function medianMilliseconds(fields, baselineFields, signal) {
  const times = [[], []];
  for (let i = 0; i < 2 * REPEATS; i++) {
    const { milliseconds } = await generate(i % 2 ? baselineFields : fields, document.createElement("p"), signal);
    times[i % 2].push(milliseconds);
  }
  return times.map((each) => each.sort((a, b) => a - b)[(REPEATS - 1) / 2]);
}

export async function generateAndCompare(signal) {
  for (const id of ["output", "baseline", "comparison"]) byId(id).textContent = "";
  byId("baseline-section").hidden = !byId("compare").checked;
  const fields = {
    prompt: byId("prompt").value, max_tokens: byId("max-tokens").valueAsNumber, temperature: byId("temperature").valueAsNumber,
    src_lang: byId("src-lang").value, tgt_lang: byId("tgt-lang").value,
  };
  const speculative = await generate(fields, byId("output"), signal);
  byId("summary").textContent = summary(speculative);
  if (!byId("compare").checked) return;
  if (speculative.seed !== null) fields.seed = speculative.seed;
  const baselineFields = { ...fields, num_draft_tokens: 0 };
  const baseline = await generate(baselineFields, byId("baseline"), signal);
  byId("comparison").textContent = "Measuring the speedup...";
  [speculative.milliseconds, baseline.milliseconds] = await medianMilliseconds(fields, baselineFields, signal);
  const speedup = (baseline.milliseconds / speculative.milliseconds).toFixed(2);
  byId("summary").textContent = summary(speculative);
  byId("comparison").textContent = `${summary(baseline)}; speedup ${speedup}x (medians of ${REPEATS} repeats)`;
}
