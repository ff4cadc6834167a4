const KEY = "ratchet-api-key";
const NAMES = 12;  // classes that are listed unfolded
let document_ = null, version = null, facts = "", busy = false, sent = null, stopping = null;
let answered = "";  // model and version of the answer that is shown; a fallback is another model

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The model server does not answer. Is it running?");
  }
}

async function contentOf(response) {
  const text = await response.text();
  let content;
  try { content = JSON.parse(text); } catch { content = { error: text }; }
  if (response.status === 401 && $("key").hidden) { $("key").hidden = false; $("secret").focus(); }
  return content;
}

async function ask(path, options) {
  const response = await request(path, options), content = await contentOf(response);
  if (!response.ok && path !== "/ready") throw new Error(content.error || content.detail || `Status ${response.status}`);
  return content;
}

// Return the whole answer. `append` takes each piece of its text as soon as it comes.
async function askStream(path, options, append) {
  const response = await request(path, options);
  if (!response.ok) throw new Error((await contentOf(response)).error || `Status ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read, rest = ""; !(read = await reader.read()).done;) {
    const events = (rest + read.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const content = JSON.parse(event.slice(event.indexOf("data: ") + 6));
      if (event.startsWith("event: end")) return content;
      if (content.error) throw new Error(`The text is not complete: ${content.error}`);
      append(content.text);
    }
  }
  throw new Error("The text is not complete: the connection ended.");
}

function show(id, text) { $(id).textContent = text; $(id).hidden = !text; }

function namesOf(prediction) {
  for (const [title, names] of [["Classes", prediction.class?.enum], ["Labels", prediction.probabilities?.properties],
    ["Numbers", prediction.values?.properties]]) if (names)
      return [title, Array.isArray(names) ? names.filter(name => name !== null) : Object.keys(names)];  // null: abstained
  return [];
}

function showFacts(model) {
  if (facts === JSON.stringify(model)) return;  // what is unfolded or selected stays so
  facts = JSON.stringify(model);
  const values = [["Follows", model.follows], ["Input", model.input], ["Target", model.target],
    ["Engine", model.engine], ["Variant", model.variant], ["Provenance", model.provenance]];
  const nodes = values.filter(([, value]) => value).map(([name, value]) => make("div", {}, make("dt", { textContent: name }),
    make("dd", { textContent: value, className: name === "Provenance" ? "code" : "", dir: "auto" })));
  const [title, names] = namesOf(schema("Prediction").properties);
  if (title) {
    const list = make("ul", { className: "names" }, ...names.map(name => make("li", { textContent: name, dir: "auto" })));
    const folded = make("details", {}, make("summary", { textContent: `Show all ${names.length}` }), list);
    nodes.push(make("div", { className: "wide" }, make("dt", { textContent: title }),
      make("dd", {}, names.length > NAMES ? folded : list)));
  }
  $("facts").replaceChildren(...nodes);
}

async function look() {
  try {
    const ready = await ask("/ready");
    $("state").textContent = ready.ready ? "Ready" : "Not ready: no version is loaded";
    $("state").className = `state ${ready.ready ? "good" : "bad"}`;
    show("problem", ready.problem ? `${ready.refused ? `${ready.refused} is not served: ` : ""}${ready.problem}` : "");
    if (!ready.ready) return;
    const model = (await ask("/v1/models")).models[0], name = `${model.model}/${model.version}`;
    if (name !== version) {
      document_ = await ask("/openapi.json");
      show("news", version ? `Version ${model.version} answers now. Your input is kept.` : "");
      version = name;
    }
    $("model").textContent = `${model.model} version ${model.version}`;
    document.title = `${model.model} version ${model.version} - model server`;
    showFacts(model);
    if (!isTyping()) buildForm();
  } catch (error) {
    $("state").textContent = error.message;
    $("state").className = "state bad";
  }
}

// On a narrow screen the answer is below the form.
function reveal(id) {
  const { top, bottom } = $(id).getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  $(id).scrollIntoView({ behavior, block: bottom - top > innerHeight ? "start" : "nearest" });
}

async function send(button, work, fail = error => show("error", error.message)) {
  if (busy) return;
  busy = true;
  const buttons = ["predict", "explain", "sample"].map($);
  for (const each of buttons) each.disabled = true;
  $("result").setAttribute("aria-busy", "true");
  $("working").hidden = false;
  $(button).classList.add("busy");
  show("error", "");
  try {
    await work();
  } catch (error) {
    fail(error);
  } finally {
    busy = false;
    for (const each of buttons) each.disabled = false;
    $("result").removeAttribute("aria-busy");
    $("working").hidden = $("stop").hidden = true;
    $(button).classList.remove("busy");
  }
}

function predict() {
  if (busy) return;
  hasInput = true;
  $("explanation").replaceChildren();
  $("explain").hidden = true;
  $("answer").replaceChildren();
  send("predict", async () => {
    const { prompt, body, headers } = form.read(), began = performance.now();
    headers["X-Canary-Key"] = crypto.randomUUID?.() ?? String(Math.random());  // one version answers and explains
    sent = { method: "POST", body, headers };
    reveal("result");
    const answer = await (prompt === undefined ? ask("/v1/predict", sent) : generate(prompt));
    answered = `${answer.model}/${answer.version}`;
    showAnswer(answer, { prompt, ms: performance.now() - began });
    $("explain").hidden = !document_.paths["/v1/explain"] || !answer.predictions.length;
  }).then(() => reveal("result"));
}

function generate(prompt) {
  stopping = new AbortController();
  $("stop").hidden = false;
  return askStream("/v1/predict", { ...sent, signal: stopping.signal }, showText(prompt).append).catch(error => {
    throw error.name === "AbortError" ? new Error("Stopped: the text is not complete.") : error;
  });
}

function explain() {
  send("explain", async () => {
    showExplanation(await ask("/v1/explain", sent));
  }, failExplanation).then(() => reveal("explanation"));
}

$("ask").addEventListener("submit", event => {
  event.preventDefault();
  if (!form) return;
  buildForm();
  predict();
});
$("fields").addEventListener("input", () => { hasInput = true; });
$("fields").addEventListener("focusout", () => document_ && setTimeout(() => isTyping() || buildForm()));
$("sample").addEventListener("click", () => form.sample());
$("stop").addEventListener("click", () => stopping.abort());
$("explain").addEventListener("click", explain);
$("key").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("secret").value);
  $("secret").value = "";
  $("key").hidden = true;
  look();
});
look();
setInterval(look, 5000);
