// The form for speech models: transcribes a file, or the microphone during a recording.

import { acceptDrops, appendSpan, authorization, byId, checked, chosenFile, events, failed, nextSignal, ready, run, summary } from "./page.js";

const RATE = 24000; // in Hz, the sample rate of OpenAI's Realtime API
const MICROPHONE_PROBLEMS = { // name of a browser's error -> message
  NotAllowedError: "The browser denied access to the microphone. Allow it for this page.",
  NotFoundError: "No microphone was found. Connect one.",
  NotReadableError: "The microphone cannot be opened. Another program may be using it.",
  NotSupportedError: `This browser cannot record at ${RATE} Hz. Use Chrome, Edge or Safari, or send a file.`, // Firefox
};

function showPieces(pieces) {
  const output = byId("output");
  for (const { text, from_draft: isAccepted } of pieces) {
    appendSpan(output, isAccepted ? "accepted" : "target", output.textContent ? text : text.trimStart());
  }
}

async function transcribe(signal) {
  byId("output").textContent = "";
  const started = performance.now();
  byId("summary").textContent = "Transcribing...";
  const body = new FormData();
  body.append("file", await chosenFile());
  body.append("stream", "true");
  body.append("rounds", "true");
  const response = await fetch("/v1/audio/transcriptions", { method: "POST", headers: authorization(), signal, body });
  for await (const event of events(await checked(response))) {
    if (event.type === "transcript.text.delta") showPieces(event.pieces);
    else showSummary(event.usage, performance.now() - started);
  }
}

function showSummary(usage, milliseconds) {
  byId("summary").textContent = `${usage.seconds.toFixed(1)} s of audio: ${summary({ usage, milliseconds })}`;
}

// Send the audio of the microphone, and show its text. Stop ends the recording; a second Stop ends the wait for text.
async function record(signal) {
  byId("output").textContent = "";
  const audio = new AudioContext({ sampleRate: RATE }); // before any await: browsers require a user action for audio
  let microphone = null, socket = null;
  try {
    await checked(await fetch("/v1/models", { headers: authorization(), signal })); // a WebSocket reports no reason if it is refused
    microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
    await audio.audioWorklet.addModule("/page_capture.js");
    socket = await openSocket();
    signal.throwIfAborted();
    const text = receiveText(socket);
    send(socket, "session.update", { session: { type: "transcription", hypotheses: true } });
    const worklet = capture(audio, microphone, (samples) => send(socket, "input_audio_buffer.append", { audio: base64(samples) }));
    byId("summary").textContent = "Recording...";
    await Promise.race([text, stopped(signal)]);
    worklet.port.close();
    release(microphone);
    send(socket, "input_audio_buffer.commit");
    byId("summary").textContent = "Finishing the text...";
    await Promise.race([text, stopped(nextSignal())]);
    byId("summary").textContent = "Recorded.";
  } catch (error) {
    throw error.name in MICROPHONE_PROBLEMS ? new Error(MICROPHONE_PROBLEMS[error.name]) : error;
  } finally {
    if (microphone) release(microphone);
    socket?.close();
    audio.close();
  }
}

const release = (microphone) => microphone.getTracks().forEach((track) => track.stop());

// A browser can send the token of a WebSocket only as a subprotocol, in which some characters must be escaped.
function openSocket() {
  const token = encodeURIComponent(byId("token").value).replaceAll("(", "%28").replaceAll(")", "%29");
  const url = new URL("/v1/realtime?intent=transcription", location.href.replace("http", "ws"));
  const socket = new WebSocket(url, ["realtime", ...(token ? [`openai-insecure-api-key.${token}`] : [])]);
  return new Promise((resolve, reject) => {
    socket.onopen = () => resolve(socket);
    socket.onclose = () => reject(new Error("The server refused the connection. It may have too many."));
  });
}

const send = (socket, type, fields) => socket.send(JSON.stringify({ type, ...fields }));
const base64 = (samples) => btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));
const stopped = (signal) => new Promise((resolve) => signal.addEventListener("abort", resolve));

// Show text from the events of a WebSocket until the text is complete.
function receiveText(socket) {
  return new Promise((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.error) reject(new Error(event.error.message));
      else if (event.type.endsWith(".delta")) showLive(event);
      else if (event.type.endsWith(".completed")) resolve();
    };
    socket.onclose = () => reject(new Error("The connection was closed before the end of the text."));
  });
}

// Append final text, and replace the text after it, which may still change.
function showLive({ pieces, pending }) {
  byId("output").querySelector(".pending")?.remove();
  showPieces(pieces);
  appendSpan(byId("output"), "pending", pending);
}

function capture(audio, microphone, onSamples) {
  const worklet = new AudioWorkletNode(audio, "capture", { channelCount: 1, channelCountMode: "explicit" });
  worklet.port.onmessage = ({ data }) => onSamples(data);
  // The node plays nothing, but browsers may not run a node that is not connected to a destination
  audio.createMediaStreamSource(microphone).connect(worklet).connect(audio.destination);
  return worklet;
}

// Return why this page cannot record, or an empty text.
function whyNoMicrophone() {
  if (!isSecureContext) return "To record, open this page over https or on localhost: browsers do not allow microphone access over http.";
  if (!navigator.mediaDevices || !window.AudioWorkletNode) return "This browser does not support recording.";
  return "";
}

byId("form").addEventListener("submit", (event) => { event.preventDefault(); run(transcribe); });
byId("record").addEventListener("click", () => run(record));
acceptDrops(() => byId("form").requestSubmit());
ready().catch(failed);
const reason = whyNoMicrophone();
byId("record-hint").textContent = reason;
if (reason) {
  byId("record").classList.add("unavailable");
  byId("record").disabled = true;
}
