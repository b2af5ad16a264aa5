// Shared by both forms of the page: runs one job at a time, handles Stop, errors, the token and dropped files, and shows
// colored text.

export const byId = (id) => document.getElementById(id);
const POLL_MILLISECONDS = 500; // while the server loads its models
let running = null; // the AbortController of the current job

export const authorization = () => {
  const token = byId("token").value;
  if (/[^ -~]/.test(token)) throw new Error("The token has only ASCII characters. Enter it again."); // headers hold no others
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
      if (event.error) throw new Error(messageOf(event));
      yield event;
    }
  }
}

// Return the message of an error in OpenAI's or LibreTranslate's format.
const messageOf = ({ error }) => error.message ?? error;

// Return a response, or throw its error. If the server asks for a token or a language, the page shows a field for it.
export async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  if (response.status === 401) ask("token-label", "token");
  if (body?.error?.param === "src_lang") ask("prompt-languages", "src-lang");
  if (body?.error?.param === "tgt_lang") ask("prompt-languages", "tgt-lang");
  throw new Error(body?.error ? messageOf(body) : `The server answered with status ${response.status}.`);
}

function ask(container, field) {
  byId(container).hidden = false;
  byId(field).focus();
}

export function summary({ usage, milliseconds }) {
  const { accepted_tokens: accepted, drafted_tokens: drafted } = usage;
  const perCall = (usage.completion_tokens / usage.target_calls).toFixed(2);
  const draft = drafted ? `; accepted ${accepted} of ${drafted} draft tokens` : "";
  return `${usage.completion_tokens} tokens in ${milliseconds.toFixed(0)} ms; ${perCall} tokens per target call${draft}`;
}

export function failed(error) {
  byId("summary").textContent = "";
  if (error.name === "AbortError") byId("summary").textContent = "Stopped.";
  else if (error instanceof TypeError) byId("problem").textContent = "The server cannot be reached. Is it running?";
  else byId("problem").textContent = error.message;
}

function setBusy(isBusy) {
  for (const each of document.querySelectorAll("button, #modes")) {
    each.disabled = each.classList.contains("unavailable") || isBusy !== (each.id === "stop");
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
  if (starter.matches(":disabled")) byId("stop").focus();
  for (const id of ["summary", "problem"]) byId(id).textContent = "";
  try {
    await job(signal);
  } catch (error) {
    failed(error);
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

// Return the chosen file. Throws an error if it cannot be read, such as a folder or a file that has changed since it was
// chosen: if a file cannot be sent, the browser reports the same error as for a server that cannot be reached.
export async function chosenFile() {
  const [file] = byId("file").files;
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Error(`${file.name} cannot be read, or has changed. Choose a file again.`);
  }
  return file;
}

// Call `start` when a file has been dropped anywhere on the page and chosen in the form.
export function acceptDrops(start) {
  document.addEventListener("dragover", (event) => { if (hasFiles(event)) byId("drop").classList.add("over"); });
  document.addEventListener("dragleave", () => byId("drop").classList.remove("over"));
  document.addEventListener("drop", (event) => {
    byId("drop").classList.remove("over");
    if (!hasFiles(event) || running) return;
    const { files } = event.dataTransfer;
    if (files.length > 1) return failed(new Error("Drop one file at a time."));
    byId("file").files = files;
    byId("file").dispatchEvent(new Event("change"));
    start();
  });
}

// Prevents the default for the whole page: when a file is dropped outside the form, browsers leave the page to open it.
function hasFiles(event) {
  const isFile = event.dataTransfer.types.includes("Files");
  if (isFile) event.preventDefault();
  return isFile;
}

// Wait until the server has loaded its models. Meanwhile, a message is shown, unless an error replaces it.
export async function ready() {
  const problem = byId("problem");
  for (let shown = ""; ;) {
    const { status } = await (await fetch("/health")).json();
    const message = status === "ok" ? "" : `The server is ${status}.`;
    if (message && status !== "loading") throw new Error(message);
    if (message !== shown && problem.textContent === shown) problem.textContent = message;
    if (!message) return;
    shown = message;
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}
