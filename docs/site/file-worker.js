// Browsers start no worker from a page that is a file, and the search of the site runs in one. So run its code in a
// hidden frame of the page. Replaces a script that the generator would load from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null
    #frame = document.createElement("iframe")
    #ready

    constructor(url) {
      super()
      this.#frame.hidden = true
      this.#ready = new Promise(ready => this.#frame.addEventListener("load", () => this.#start(url, ready)))
      document.documentElement.append(this.#frame)
    }

    #start(url, ready) {
      const inside = this.#frame.contentWindow
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.onmessage?.(event)
        this.dispatchEvent(event)
      }
      const script = inside.document.createElement("script")
      script.addEventListener("load", () => ready(inside))
      script.src = new URL(url, location.href).href
      inside.document.body.append(script)
    }

    postMessage(data) {
      this.#ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.#frame.remove()
    }
  }
}
