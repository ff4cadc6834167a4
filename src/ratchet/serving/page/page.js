"use strict";
// Every value is written with textContent or as an attribute, so no value becomes markup.
const $ = id => document.getElementById(id);
const KEY = "ratchet-api-key";
let document_ = null, version = null, file = null, busy = false, repeat = null;

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The model server does not answer. Is it running?");
  }
  const text = await response.text();
  let content;
  try { content = JSON.parse(text); } catch { content = { error: text }; }
  if (response.status === 401 && $("key").hidden) { $("key").hidden = false; $("secret").focus(); }
  if (!response.ok && path !== "/ready") throw new Error(content.error || content.detail || `Status ${response.status}`);
  return content;
}

function show(id, text) { $(id).textContent = text; $(id).hidden = !text; }

function showFacts(model) {
  const facts = [["Version", model.version], ["Follows", model.follows], ["Input", model.input], ["Target", model.target],
    ["Engine", model.engine], ["Variant", model.variant], ["Provenance", model.provenance]];
  $("facts").replaceChildren(...facts.filter(([, value]) => value).map(([name, value]) => make("div", {},
    make("dt", { textContent: name }), make("dd", { textContent: value, className: name === "Provenance" ? "code" : "" }))));
}

async function look() {
  try {
    const ready = await ask("/ready");
    $("state").textContent = ready.ready ? "Ready" : "Not ready: no version is loaded";
    $("state").className = `state ${ready.ready ? "good" : "bad"}`;
    show("problem", ready.problem ? `${ready.refused ? `${ready.refused} is not served: ` : ""}${ready.problem}` : "");
    if (!ready.ready) return;
    const model = (await ask("/v1/models")).models[0];
    $("model").textContent = model.model;
    document.title = `${model.model} - model server`;
    showFacts(model);
    const name = `${model.model}/${model.version}`;
    if (name !== version) {
      document_ = await ask("/openapi.json");
      buildForm();
      version = name;
    }
  } catch (error) {
    $("state").textContent = error.message;
    $("state").className = "state bad";
  }
}

function field(name, input, hint) {
  input.id = `field-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  const children = [make("label", { htmlFor: input.id, textContent: name }), input];
  if (hint) {
    children.push(make("span", { id: `${input.id}-hint`, className: "hint", textContent: hint }));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return make("div", { className: "field" }, ...children);
}

const schema = name => document_.components.schemas[name];
const example = () => document_.paths["/v1/predict"].post.requestBody.content["application/json"].example;
let answered = "";  // version of the answer that is shown
let read = null;  // returns the body and headers of a request

const asJson = input => {
  const options = input.options || ("max_tokens" in (schema("Request").properties.options.properties) ? {} : { top_k: 5 });
  return { body: JSON.stringify({ input: input.rows, options }), headers: { "Content-Type": "application/json" } };
};

function buildForm() {
  const input = schema("Input"), rows = input.items, content = document_.paths["/v1/predict"].post.requestBody.content;
  $("fields").className = "";
  if (content["multipart/form-data"]) imageForm();
  else if (rows && rows.properties) tableForm(rows.properties);
  else if (rows && rows.type === "string") textForm();
  else jsonForm();
  $("explain").hidden = true;
}

function imageForm() {
  file = null;
  const chooser = make("input", { type: "file", accept: "image/*", id: "file" });
  const preview = make("img", { className: "shown", alt: "The chosen image", hidden: true });
  const drop = make("div", { className: "drop" },
    make("label", { htmlFor: "file", textContent: "Drop an image here, or choose a file" }), chooser, preview);
  const choose = chosen => {
    file = chosen;
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.onload = () => preview.classList.toggle("small", preview.naturalWidth < 96);
    preview.src = URL.createObjectURL(chosen);
    preview.hidden = false;
    predict();
  };
  chooser.addEventListener("change", () => chooser.files[0] && choose(chooser.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) drop.addEventListener(kind, event => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) choose(event.dataTransfer.files[0]);
  });
  $("fields").replaceChildren(drop);
  read = () => {
    if (!file) throw new Error("Choose an image first.");
    const form = new FormData();
    form.append("file", file);
    form.append("top_k", "5");
    return { body: form, headers: {} };
  };
}

function tableForm(columns) {
  const first = example().input[0], inputs = {};
  const fields = Object.entries(columns).map(([name, column]) => {
    const isCategory = !!column.examples;
    const isNumber = !isCategory && !column.type.includes("string");
    let input;
    if (isCategory) {
      input = make("select", {}, make("option", { value: "", textContent: "(missing)" }),
        ...column.examples.map(value => make("option", { value, textContent: value })));
      input.value = first[name] ?? "";
    } else {
      input = make("input", isNumber ? { type: "number", step: "any" } : { type: "text" });
      input.value = typeof first[name] === "number" ? Number(first[name].toPrecision(6)) : first[name] ?? "";
    }
    inputs[name] = () => input.value === "" ? null : isNumber ? Number(input.value) : input.value;
    return field(name, input, column.description || "");
  });
  $("fields").className = "grid";
  $("fields").replaceChildren(...fields);
  read = () => asJson({ rows: [Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, value()]))] });
}

function textForm() {
  const known = schema("Request").properties.options.properties, isPrompt = "max_tokens" in known;
  const text = make("textarea", { required: true }), inputs = {};
  const fields = [field(isPrompt ? "Prompt" : "Text", text)];
  if (isPrompt) {
    const grid = make("div", { className: "grid" });
    for (const name of Object.keys(known).filter(name => known[name].type !== "boolean")) {
      inputs[name] = make("input", { type: "number", step: "any", value: name === "max_tokens" ? 100 : "" });
      grid.append(field(name, inputs[name], name === "max_tokens" ? "" : "empty: the default"));
    }
    fields.push(grid);
  }
  $("fields").replaceChildren(...fields);
  read = () => asJson({ rows: [text.value], options: isPrompt ? Object.fromEntries(Object.entries(inputs)
    .filter(([, input]) => input.value !== "").map(([name, input]) => [name, Number(input.value)])) : undefined });
}

function jsonForm() {
  const text = make("textarea", { value: JSON.stringify(example().input) });
  $("fields").replaceChildren(field("Input as JSON", text, "as the field input of /v1/predict"));
  read = () => {
    try { return asJson({ rows: JSON.parse(text.value) }); } catch (error) { throw new Error(`Input as JSON: ${error.message}`); }
  };
}

function bars(items, asText, { largest = 1, signed = false } = {}) {
  return make("ul", { className: "bars" }, ...items.map(([name, value]) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 100 8");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const share = 100 * Math.min(1, Math.abs(value) / (largest || 1));
    for (const [start, width, kind] of [[0, 100, ""], [signed ? (value < 0 ? 50 - share / 2 : 50) : 0, signed ? share / 2 : share,
      value < 0 ? "negative" : "positive"]]) {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      for (const [key, given] of Object.entries({ x: start, y: 0, width, height: 8, class: kind })) rect.setAttribute(key, given);
      svg.append(rect);
    }
    return make("li", {}, make("span", { textContent: name }), make("span", { className: "value", textContent: asText(value) }), svg);
  }));
}

const percent = value => `${(100 * value).toFixed(1)} %`;
const number = value => value.toLocaleString("en", { maximumSignificantDigits: 6 });
const signed = value => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toPrecision(3)}`;

function showAnswer(answer) {
  const prediction = answer.predictions[0], parts = [];
  if (!prediction) parts.push(make("p", { className: "none", textContent: "The input has no rows." }));
  else if ("text" in prediction) parts.push(make("p", { className: "text", textContent: prediction.text || "(no text)" }));
  else if (prediction.class !== undefined) {
    parts.push(make("p", { className: "result", textContent: prediction.class }));
    parts.push(bars((prediction.top || [prediction]).map(each => [each.class, each.probability]), percent));
  } else if (prediction.probabilities) parts.push(bars(Object.entries(prediction.probabilities), percent));
  else for (const [name, value] of Object.entries(prediction.values)) parts.push(
    make("p", { className: "none", textContent: name }), make("p", { className: "result", textContent: number(value) }));
  parts.push(make("p", { className: "ids",
    textContent: `Answer ${answer.id} of ${answer.model}/${answer.version}, provenance ${answer.provenance ?? "not recorded"}` }));
  $("answer").replaceChildren(...parts);
}

function showExplanation({ explanation, model, version }) {
  const parts = [make("h3", { textContent: `Explanation by ${model}/${version}` })];
  const note = text => parts.push(make("p", { className: "none", textContent: text }));
  if (explanation.kind === "pixels") {
    note(`Orange pixels support ${explanation.of}, blue pixels support ${explanation.against}.`);
    const image = make("img", { className: "shown", src: `data:image/png;base64,${explanation.png}`,
      alt: `The image with the pixels that support ${explanation.of} and ${explanation.against}` });
    image.onload = () => image.classList.toggle("small", image.naturalWidth < 96);
    parts.push(image);
  } else {
    note(explanation.kind === "columns"
      ? `How much the value of each column changes the output for ${explanation.of}, compared with other training values.`
      : `How much each word changes the output for ${explanation.of}, compared with the text without it.`);
    const values = explanation.contributions.map(({ name, value }) => [name, value]);
    parts.push(bars(values, signed, { largest: Math.max(...values.map(([, value]) => Math.abs(value))), signed: true }));
  }
  if (answered !== version) note(`Version ${answered} gave the answer above.`);
  $("explanation").replaceChildren(...parts);
}

function failExplanation(error) {  // the answer above stays right
  $("explanation").replaceChildren(make("p", { className: "none", textContent: `There is no explanation: ${error.message}` }));
}

async function send(path, request, then, fail = error => show("error", error.message)) {
  if (busy) return;
  busy = true;
  for (const id of ["predict", "explain"]) $(id).disabled = true;
  show("error", "");
  try {
    then(await ask(path, { method: "POST", ...request() }));
  } catch (error) {
    fail(error);
  } finally {
    busy = false;
    for (const id of ["predict", "explain"]) $(id).disabled = false;
  }
}

function predict() {
  $("explanation").replaceChildren();
  $("explain").hidden = true;
  $("answer").replaceChildren();
  return send("/v1/predict", () => {
    const sent = read();
    sent.headers["X-Canary-Key"] = crypto.randomUUID?.() ?? String(Math.random());  // one version answers and explains
    repeat = () => sent;
    return sent;
  }, answer => {
    answered = answer.version;
    showAnswer(answer);
    $("explain").hidden = !document_.paths["/v1/explain"] || !answer.predictions.length;
  });
}

$("ask").addEventListener("submit", event => { event.preventDefault(); if (read) predict(); });
$("explain").addEventListener("click", () => send("/v1/explain", () => repeat(), showExplanation, failExplanation));
$("key").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("secret").value);
  $("secret").value = "";
  $("key").hidden = true;
  look();
});
look();
setInterval(look, 5000);
