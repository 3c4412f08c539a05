// Reads the event stream, and opens it again where it ended. `EventSource` cannot say why it was refused.

const SILENT_MILLISECONDS = 2_900; // nearly three beats: what is older is not live
const OLDEST_SECONDS = 2.9; // of the extender's last look
const LONGEST_PAUSE_MILLISECONDS = 10_000;
const DENIED = "denied";
export const MARKS_OF_DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g; // a name with them turns the words after it

export class Stream {
  // `tell` gets each message, and whether it is the last of those that belong together; `state` gets "live", "lost" or "denied" with a reason, or "paused".
  constructor(tell, state) {
    this.tell = tell;
    this.state = state;
    this.seen = "";
    this.token = "";
    this.wanted = null;
  }

  open() {
    this.wanted = new AbortController();
    this.run(this.wanted);
  }

  close() {
    this.wanted?.abort();
    this.wanted = null;
    this.state("paused", "");
  }

  async run(wanted) {
    let pause = 500;
    while (this.wanted === wanted) {
      let problem = "the connection ended";
      try {
        problem = await this.follow(wanted, () => { pause = 500; });
      } catch (error) {
        problem = error instanceof TypeError ? "the extender does not answer" : error.message;
      }
      if (this.wanted !== wanted) return;
      if (problem === DENIED) return;
      if (problem) this.state("lost", problem);
      // Not all pages at once.
      await new Promise((resolve) => setTimeout(resolve, problem ? pause * (0.5 + Math.random()) : 50));
      pause = problem ? Math.min(pause * 2, LONGEST_PAUSE_MILLISECONDS) : 500;
    }
  }

  // Follows one stream to its end. Returns why it was refused, or an empty text.
  async follow(wanted, came) {
    const silent = new AbortController();
    let [alarm, late] = [0, 0];
    const wake = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => silent.abort(new Error("the extender is silent")), SILENT_MILLISECONDS);
    };
    // A large message may take longer. It is read on, but what is shown is old meanwhile.
    const wait = () => {
      clearTimeout(late);
      late = setTimeout(() => this.state("lost", "messages come too slowly"), SILENT_MILLISECONDS);
    };
    const stop = () => silent.abort(new Error("closed"));
    wanted.signal.addEventListener("abort", stop);
    try {
      wake();
      wait();
      const answer = await fetch("events", { headers: this.headers(), cache: "no-store", signal: silent.signal });
      if (answer.status === 401 || answer.status === 403) {
        this.state("denied", (await answer.text()).trim().slice(0, 300));
        return DENIED;
      }
      if (!answer.ok) return (await answer.text()).trim().slice(0, 300) || `status ${answer.status}`;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done || this.wanted !== wanted) return "";
        wake();
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        if (events.length) wait();
        for (const event of events) this.handle(event, came);
      }
    } finally {
      for (const each of [alarm, late]) clearTimeout(each);
      wanted.signal.removeEventListener("abort", stop);
    }
  }

  headers() {
    return { "Last-Event-ID": this.seen, "X-TopoGPU-Page": "1", ...(this.token ? { "X-TopoGPU-Token": this.token } : {}) };
  }

  handle(event, came) {
    let [data, last] = ["", false];
    for (const line of event.split("\n")) {
      if (line.startsWith("data: ")) data = line.slice(6);
      if (line.startsWith("id: ")) [this.seen, last] = [line.slice(4), true];
    }
    if (!data) return;
    came();
    const message = JSON.parse(data.replace(MARKS_OF_DIRECTION, "\ufffd"));
    if (message.age > OLDEST_SECONDS) this.state("lost", `the extender has not looked at its cluster for ${Math.round(message.age)} s`);
    else this.state("live", "");
    this.tell(message, last);
  }
}
