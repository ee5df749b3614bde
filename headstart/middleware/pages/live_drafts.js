// Live drafts for Headstart: tells the server what is being typed, so that the answer begins early.
//
//   <script src="http://127.0.0.1:8080/_headstart/live.js"></script>
//   const draft = await HeadstartLiveDraft.begin({
//     url: "http://127.0.0.1:8080", headers: { authorization: "Bearer …" },
//     request: { model: "gpt-5-mini", stream: true, messages: [{ role: "user", content: "{{draft}}" }] },
//   });
//   draft.follow(textarea);                       // or draft.write(text) for each state of the text
//   fetch(…, { headers: { …, ...draft.headers } }) // the ordinary final call
//
// `request` is the body of the final call with {{draft}} in the place of the text. If anything fails
// here, the final call is an ordinary one.
(() => {
  "use strict";

  class HeadstartLiveDraft {
    constructor(url, id, headers, intervalMs) {
      this.url = url;
      this.id = id;
      this.state = { id, rev: -1, cache: "unknown", warm: "none", answer: "none", spent_usd: 0 };
      this.sendHeaders = headers;
      this.intervalMs = intervalMs;
      this.rev = 0;
      this.text = null;
      this.sent = null;
      this.busy = false;
    }

    static async begin({ url = "", request, headers = {}, path, stages, budgetUsd, intervalMs = 100 }) {
      const base = url.replace(/\/+$/, "").replace(/\/v1$/, "") + "/v1/live";
      const sendHeaders = { ...headers, "content-type": "application/json" };
      const body = JSON.stringify({ request, path, stages, budget_usd: budgetUsd });
      const response = await fetch(base, { method: "POST", headers: sendHeaders, body });
      if (response.status !== 201) throw new Error(`the live draft was refused: ${await response.text()}`);
      const state = await response.json();
      return new HeadstartLiveDraft(base, state.id, sendHeaders, intervalMs);
    }

    // The header for the final call.
    get headers() {
      return { "x-headstart-live": this.id };
    }

    // Tell the present text. Returns at once.
    write(text) {
      this.text = text;
      if (!this.busy) this.#sendAll();
    }

    // Follow a text field. Returns a function that stops it.
    follow(field) {
      const write = () => this.write(field.value);
      field.addEventListener("input", write);
      return () => field.removeEventListener("input", write);
    }

    // End the draft without a final call.
    async end() {
      this.text = this.sent;
      await fetch(`${this.url}/${this.id}`, { method: "DELETE", headers: this.sendHeaders }).catch(() => {});
    }

    async #sendAll() {
      this.busy = true;
      while (this.text !== this.sent) {
        this.sent = this.text;
        const body = JSON.stringify({ rev: ++this.rev, text: this.sent });
        try {
          const put = { method: "PUT", headers: this.sendHeaders, body };
          const response = await fetch(`${this.url}/${this.id}`, put);
          if (response.status === 202) this.state = await response.json();
        } catch {
          // The final call is then an ordinary one.
        }
        await new Promise((resolve) => setTimeout(resolve, this.intervalMs));
      }
      this.busy = false;
    }
  }

  globalThis.HeadstartLiveDraft = HeadstartLiveDraft;
})();
