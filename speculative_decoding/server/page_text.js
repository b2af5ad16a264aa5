// The form for text models. Its three modes translate a text, translate a file, and show how a prompt is decoded.

import { acceptDrops, byId, failed, ready, run } from "./page.js";
import { generateAndCompare } from "./page_prompt.js";
import { hasLanguages, showChoices, translateFile, translateText } from "./page_translation.js";

const JOBS = { text: translateText, file: translateFile, prompt: generateAndCompare };

let prepared = null; // the promise of `whenPrepared`

const mode = () => byId("form").elements.mode.value;

// Show the parts of the form for the current mode. The other parts are disabled, because hidden required fields would
// prevent the form from being submitted.
function showMode() {
  for (const part of document.querySelectorAll("[data-modes]")) {
    const isShown = part.dataset.modes.split(" ").includes(mode()) && (part.id !== "languages" || hasLanguages());
    part.hidden = part.disabled = !isShown;
  }
  byId("start").textContent = mode() === "prompt" ? "Generate" : hasLanguages() ? "Translate" : "Run";
  byId("panes").className = mode();
}

function setMode(name) {
  byId("form").elements.mode.value = name;
  for (const id of ["problem", "summary"]) byId(id).textContent = "";
  showMode();
}

// Wait until the server has loaded its models and the page shows their languages. After an error, try again.
function whenPrepared() {
  if (!prepared) {
    byId("problem").textContent = "";
    prepared = ready().then(prepare).catch((error) => { prepared = null; throw error; });
  }
  return prepared;
}

// Without the subpackage for documents, the server translates neither texts nor files.
async function prepare() {
  const canTranslate = await showChoices();
  if (canTranslate) showMode();
  else setMode("prompt");
  byId("modes").hidden = !canTranslate;
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  whenPrepared().then(() => run(JOBS[mode()])).catch(failed);
});
byId("modes").addEventListener("change", () => setMode(mode()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); byId("form").requestSubmit(); }
});
acceptDrops(() => { setMode("file"); byId("start").focus(); });
showMode();
whenPrepared().catch(failed);
