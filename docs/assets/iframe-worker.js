// Browsers start no worker for a page that is opened from a file. There this runs the worker's script, the search, in a
// hidden frame. The theme's script looks for the name IFrameWorker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    #ready;

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.#load(each);
      };
      this.#ready = this.#load(url);
    }

    async postMessage(data) {
      await this.#ready;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    #load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(url, location);
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${script.src} cannot be read`));
        this.inside.document.body.append(script);
      });
    }
  };
  window.Worker = window.IFrameWorker;
}
