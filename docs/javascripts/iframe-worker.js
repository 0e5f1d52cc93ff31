// Browsers start no Worker from a file. In a site that is opened from a disk its script runs in a hidden frame, so that
// the search works there without a server and without a network. (The theme asks for a script of this file's name.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = []

    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.#tell(this, data)
      this.scope.importScripts = (...paths) => Promise.all(paths.map(path => this.#load(new URL(path, url))))
      this.#load(url).then(() => {
        for (const data of this.#waiting) this.#tell(this.scope, data)
        this.#waiting = null
      })
    }

    postMessage(data) {
      this.#waiting ? this.#waiting.push(data) : this.#tell(this.scope, data)
    }

    terminate() {
      this.scope.frameElement.remove()
    }

    #tell(receiver, data) {
      const event = new MessageEvent("message", {data})
      receiver.dispatchEvent(event)
      if (receiver === this) this.onmessage?.(event) // of a window the browser calls it
    }

    #load(url) {
      return new Promise((loaded, failed) => {
        const script = this.scope.document.createElement("script")
        Object.assign(script, {src: url, onload: loaded, onerror: failed})
        this.scope.document.documentElement.append(script)
      })
    }
  }
}
