// Translates a text or a file with LibreTranslate's API, and lists the places in the output that a reader should check.

import { authorization, byId, checked, chosenFile, events } from "./page.js";

const AUTO = "auto";
const MEANINGS = { // category of a finding -> its meaning, which a text from the document or a reason follows
  markup: "formatting removed",
  loop: "repeated in the output",
  length: "unusual length",
  cut: "cut off",
  split: "sentence divided",
  failed: "not decoded",
  copied: "copied, because it is not natural language",
  parts: "decoded in parts, may be less fluent",
  lost: "missing from the output",
  match: "not taken from the memory",
  untranslated: "left untranslated",
  anchor: "link to a heading whose text has changed",
};
const SHOW_MILLISECONDS = 100; // between updates of the output, because each takes time in proportion to its length
let languages = []; // LibreTranslate's list: {code, name, targets}; empty if the model has no languages
let fieldOfSuffix = {}; // suffix of a file -> name of the field for its columns or keys
let fileUrl = ""; // of the file that can be downloaded

export const hasLanguages = () => languages.length > 0;

// Show the languages of the model and the formats of files. Returns whether the server translates texts and files.
export async function showChoices() {
  const [listed, settings] = await Promise.all(
    ["/languages", "/frontend/settings"].map(async (path) => (await checked(await fetch(path))).json()));
  languages = listed;
  byId("formats").textContent = `Supported: ${settings.supportedFilesFormat.join(" ")}`;
  byId("file").accept = settings.supportedFilesFormat.join(",");
  fieldOfSuffix = settings.fileFields;
  showFields();
  if (hasLanguages()) {
    const codes = languages.map(({ code }) => code).sort(byName);
    const sources = codes.filter((code) => targetsOf(code).length);
    const shown = sources.length ? sources : codes; // a model may only correct texts, from one language to itself
    fill(byId("source"), settings.languageDetection ? [AUTO, ...shown] : shown, settings.language.source?.code ?? shown[0]);
    showTargets(settings.language.target?.code);
  }
  return settings.filesTranslation;
}

// Show the field for the columns or keys of the chosen file, if its format has any.
function showFields() {
  const name = byId("file").files[0]?.name ?? "";
  const shown = fieldOfSuffix[name.slice(name.lastIndexOf(".")).toLowerCase()];
  for (const field of document.querySelectorAll("[data-field]")) field.hidden = field.dataset.field !== shown;
}

const languageOf = (code) => languages.find((each) => each.code === code);
const nameOf = (code) => (code === AUTO ? "Detect language" : languageOf(code).name);
const targetsOf = (code) => languageOf(code).targets.filter((each) => each !== code); // each language lists itself, too
const byName = (code, other) => nameOf(code).localeCompare(nameOf(other), "en");

function fill(select, codes, chosen) {
  select.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
  if (codes.includes(chosen)) select.value = chosen;
}

// List the languages into which the chosen source can be translated.
function showTargets(chosen) {
  const source = byId("source").value;
  const sources = source === AUTO ? [...byId("source").options].map(({ value }) => value).filter((code) => code !== AUTO) : [source];
  const possible = sources.flatMap(targetsOf);
  fill(byId("target"), [...new Set(possible.length ? possible : sources)].sort(byName), chosen);
  setLanguages();
}

// Set the languages of the text areas, so that screen readers pronounce the texts correctly.
function setLanguages() {
  const { value: source } = byId("source");
  byId("text").lang = source === AUTO ? "" : source;
  byId("translation").lang = byId("target").value;
}

const pair = () => (hasLanguages() ? { source: byId("source").value, target: byId("target").value } : {});

// Send a request, show its progress, and pass new output to `show`. Returns the fields of the response, and its time.
async function translate(path, headers, body, signal, show) {
  const started = performance.now();
  const progress = byId("progress");
  progress.removeAttribute("value");
  progress.hidden = false;
  byId("summary").textContent = "Waiting for the first output...";
  try {
    let last = null;
    const response = await fetch(path, { method: "POST", headers: { ...headers, ...authorization() }, signal, body });
    for await (const event of events(await checked(response))) {
      last = event;
      if (!("progress" in event)) continue;
      progress.value = event.progress;
      byId("summary").textContent = "Decoding...";
      show(event.delta);
    }
    return [last, performance.now() - started];
  } finally {
    progress.hidden = true;
  }
}

export async function translateText(signal) {
  const output = byId("translation");
  let waiting = "", shown = 0;
  const flush = () => { output.value += waiting; waiting = ""; shown = performance.now(); };
  const show = (delta) => { waiting += delta; if (performance.now() - shown > SHOW_MILLISECONDS) flush(); };
  output.value = "";
  byId("text-findings").hidden = true;
  const body = JSON.stringify({ q: byId("text").value, ...pair(), stream: true });
  const headers = { "Content-Type": "application/json" };
  const [content, milliseconds] = await translate("/translate", headers, body, signal, show).finally(flush);
  output.value = content.translatedText;
  showResult(content, milliseconds, byId("text-findings"), lineButton);
}

export async function translateFile(signal) {
  byId("file-findings").hidden = byId("download").hidden = true;
  const body = new FormData();
  for (const [name, value] of Object.entries({ ...pair(), stream: true })) body.append(name, value);
  for (const { name, value } of document.querySelectorAll("[data-field]:not([hidden]) input")) {
    for (const each of value.split(",")) body.append(name, each.trim());
  }
  body.append("file", await chosenFile());
  const [content, milliseconds] = await translate("/translate_file", {}, body, signal, () => {});
  await download(content.translatedFileUrl, signal);
  showResult(content, milliseconds, byId("file-findings"), (line) => `Line ${line}`);
}

// Fetch a translated file and link to it, because a link cannot send the token. The path is used without its origin,
// because the server may not know under which scheme a proxy is reached.
async function download(url, signal) {
  const response = await checked(await fetch(new URL(url).pathname, { headers: authorization(), signal }));
  const [, name] = response.headers.get("Content-Disposition").match(/filename\*=UTF-8''(\S+)/);
  URL.revokeObjectURL(fileUrl);
  fileUrl = URL.createObjectURL(await response.blob());
  const link = byId("download");
  link.href = fileUrl;
  link.download = decodeURIComponent(name);
  link.textContent = `Download ${link.download}`;
  link.hidden = false;
}

// Show the findings in a list. lineLabel: Returns a text or an element for a line number.
function showResult({ detectedLanguage, findings = [] }, milliseconds, list, lineLabel) {
  const detected = detectedLanguage?.language;
  const isUnchanged = detected !== undefined && detected === byId("target").value;
  const parts = [
    `Finished in ${(milliseconds / 1000).toFixed(1)} s`,
    ...(detected ? [`detected ${nameOf(detected)}${isUnchanged ? ", so the text is unchanged" : ""}`] : []),
    ...(findings.length ? [places(findings)] : []),
  ];
  byId("summary").textContent = `${parts.join("; ")}.`;
  list.hidden = !findings.length;
  list.querySelector("summary").textContent = places(findings);
  list.querySelector("ul").replaceChildren(...findings.map(({ line, kind, what }) => {
    const item = document.createElement("li");
    item.append(lineLabel(line), `: ${MEANINGS[kind] ?? kind}: ${what}`);
    return item;
  }));
}

// Return a button that selects a line of the source text, because lines wrap and have no visible numbers.
function lineButton(line) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Line ${line}`;
  button.addEventListener("click", () => {
    const text = byId("text");
    const start = text.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1);
    const end = text.value.indexOf("\n", start);
    text.focus();
    text.setSelectionRange(start, end < 0 ? text.value.length : end);
    text.scrollTop = heightOf(text.value.slice(0, start)) - text.clientHeight / 2;
  });
  return button;
}

// Return the height of the source text if it were shorter. Browsers do not scroll to a selection in a text area.
function heightOf(value) {
  const copy = byId("text").cloneNode();
  copy.value = value;
  copy.rows = 1;
  copy.style.height = "auto"; // the user may have resized the text area
  byId("text").after(copy);
  const { scrollHeight } = copy;
  copy.remove();
  return scrollHeight;
}

const places = ({ length }) => `${length} ${length === 1 ? "place" : "places"} to check`;

byId("file").addEventListener("change", showFields);
byId("source").addEventListener("change", () => showTargets(byId("target").value));
byId("target").addEventListener("change", setLanguages);
byId("copy").addEventListener("click", () => {
  byId("translation").select();
  document.execCommand("copy"); // navigator.clipboard does not exist on pages over http, except on localhost
  byId("summary").textContent = "Copied.";
});
