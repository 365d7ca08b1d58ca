// The search's worker. Browsers start none from a file: there it runs in a hidden frame instead.
{
  class FrameWorker extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<body></body>";
      this.inside = new Promise(done => {
        frame.onload = () => {
          const inside = frame.contentWindow, script = inside.document.createElement("script");
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
          script.onload = () => done(inside);
          script.src = address;
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }
    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new inside.MessageEvent("message", {data}));
    }
    terminate() {}
  }

  // A word of a question is sought as the beginning of words: "do" would find Docker, "a" nearly all. A word that
  // stands on each page is left out beside others. The 9 of "kill -9" is no word to leave out.
  const listed = text => new Set(text.split(" "));
  const idle = listed("a an and any are as at be but by can do does for from get have how i if in is it me my not of on or "
    + "so that the them there this to two use want was what when where which why will with you");
  const common = listed("job jobs run runs task tasks");
  const asked = text => {
    const words = text.replace(/(^|\s)[-+]+/g, "$1").split(" ").filter(word => !idle.has(word.replace(/\*$/, "").toLowerCase()));
    const rare = words.filter(word => !common.has(word.replace(/\*$/, "").toLowerCase()));
    const kept = rare.length ? rare : words.length ? words : text.split(" ");
    return kept.map(word => word.replace(/(\w{3}[^s\W])s\*$/, "$1*")).join(" ");
  };
  const Base = location.protocol === "file:" ? FrameWorker : Worker;
  window.Worker = class extends Base {
    postMessage(message, ...rest) {
      const isQuery = typeof message?.data === "string";
      super.postMessage(isQuery ? {...message, data: asked(message.data)} : message, ...rest);
    }
  };
}
