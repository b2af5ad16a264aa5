// Runs in the browser's audio thread: sends the audio of the microphone to the page, as 16-bit PCM.

const SAMPLES = 960; // per message: 40 ms

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = new Int16Array(SAMPLES);
    this.count = 0;
  }

  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.samples[this.count++] = Math.round(32767 * Math.max(-1, Math.min(1, sample)));
      if (this.count === SAMPLES) {
        this.port.postMessage(this.samples.slice());
        this.count = 0;
      }
    }
    return true;
  }
}

registerProcessor("capture", Capture);
