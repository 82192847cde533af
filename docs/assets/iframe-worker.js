// Browsers refuse workers on pages opened from a disk. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.send = (data) => waiting.push(data);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onerror = () => this.dispatchEvent(new Event("error"));
      script.onload = () => {
        this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
        waiting.forEach(this.send);
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      this.send(data);
    }
  };
}
