/* Browsers start no workers for pages that are read from a folder. There the search runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.started = new Promise(done => {
        const script = frame.contentDocument.createElement("script")
        script.src = url
        script.onload = done
        frame.contentDocument.head.append(script)
      })
    }

    postMessage(data) {
      this.started.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
}
