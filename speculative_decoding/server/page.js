// Shared by both forms of the page: runs one job at a time, handles Stop, errors and the token, and shows colored text.

export const byId = (id) => document.getElementById(id);
let running = null; // the AbortController of the current job

export const authorization = () => {
  const token = byId("token").value;
  return token ? { Authorization: `Bearer ${token}` } : {};
};

export function appendSpan(parent, className, text) {
  if (!text) return;
  const element = document.createElement(className === "rejected" ? "s" : "span");
  element.className = className;
  element.textContent = text;
  parent.append(element);
}

// Yield the server-sent events of a response.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection was closed before the end of the output.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

export async function checked(response) {
  if (response.ok) return response;
  if (response.status === 401) { byId("token-label").hidden = false; byId("token").focus(); }
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `The server answered with status ${response.status}.`);
}

export function summary({ usage, milliseconds }) {
  const { accepted_tokens: accepted, drafted_tokens: drafted } = usage;
  const perCall = (usage.completion_tokens / usage.target_calls).toFixed(2);
  const draft = drafted ? `; accepted ${accepted} of ${drafted} draft tokens` : "";
  return `${usage.completion_tokens} tokens in ${milliseconds.toFixed(0)} ms; ${perCall} tokens per target call${draft}`;
}

function showError(error) {
  byId("summary").textContent = "";
  if (error.name === "AbortError") byId("summary").textContent = "Stopped.";
  else if (error instanceof TypeError) byId("problem").textContent = "The server cannot be reached. Is it running?";
  else byId("problem").textContent = error.message;
}

function setBusy(isBusy) {
  for (const button of document.querySelectorAll("button")) {
    button.disabled = button.classList.contains("unavailable") || isBusy !== (button.id === "stop");
  }
}

// Return a new signal of the running job. The signal is aborted when the user next presses Stop.
export function nextSignal() {
  running = new AbortController();
  return running.signal;
}

// Run a job unless one is running. Meanwhile, the focus is on Stop instead of the button that started the job.
export async function run(job) {
  if (running) return;
  const starter = document.activeElement;
  const signal = nextSignal();
  setBusy(true);
  if (starter.disabled) byId("stop").focus();
  for (const id of ["output", "summary", "problem"]) byId(id).textContent = "";
  try {
    await job(signal);
  } catch (error) {
    showError(error);
  } finally {
    running = null;
    const isAtStop = document.activeElement === byId("stop");
    setBusy(false);
    if (isAtStop) starter.focus();
  }
}

const stop = () => running?.abort();
byId("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && event.repeat && event.target === byId("stop")) event.preventDefault(); // the key that started the job is still held
});
fetch("/health").then((response) => response.json()).then((health) => {
  if (health.status !== "ok") byId("problem").textContent = `The server is ${health.status}.`;
}).catch(showError);
