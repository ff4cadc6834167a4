"use strict";
// Every value is written with textContent or as an attribute, so no value becomes markup.
const $ = id => document.getElementById(id);

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

// The input of a request. A form has `nodes`, its `controls` by name, and `read`, which returns a request.
const schema = name => document_.components.schemas[name];
const example = () => document_.paths["/v1/predict"].post.requestBody.content["application/json"].example.input;
const optionsOf = () => schema("Request").properties.options.properties;
const writesText = () => "max_tokens" in optionsOf();  // a language model
let form = null, formOf = "", file = null;
let hasInput = false;  // a person typed, or asked for an answer

function field(name, input, hint) {
  input.id = `field-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  input.dataset.name = name;
  const children = [make("label", { htmlFor: input.id, textContent: name, dir: "auto" }), input];
  if (hint) {
    children.push(make("span", { id: `${input.id}-hint`, className: "hint", textContent: hint, dir: "auto" }));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return make("div", { className: "field" }, ...children);
}

const asJson = (rows, options) => ({
  body: JSON.stringify({ input: rows, options }), headers: { "Content-Type": "application/json" },
});

// Build the form of the served version. What was typed or chosen in the form before stays.
function buildForm() {
  const described = JSON.stringify([document_.paths["/v1/predict"].post.requestBody.content, schema("Input"), optionsOf()]);
  if (described === formOf) return;
  const before = form, focused = document.activeElement.dataset.name;
  const input = schema("Input"), rows = input.items;
  if (document_.paths["/v1/predict"].post.requestBody.content["multipart/form-data"]) form = imageForm();
  else if (rows && rows.properties) form = tableForm(rows.properties);
  else if (rows && rows.type === "string") form = textForm();
  else form = jsonForm();
  if (before && hasInput) for (const [name, control] of form.controls) {
    if (before.controls.has(name)) write(control, before.controls.get(name).value);
  }
  $("fields").className = form.className || "";
  $("fields").replaceChildren(...form.nodes);
  form.controls.get(focused)?.focus();
  $("predict").textContent = writesText() ? "Generate" : "Predict";
  $("sample").hidden = false;
  formOf = described;
}

function write(control, value) {
  const isUnknown = control.tagName === "SELECT" && ![...control.options].some(option => option.value === value);
  if (isUnknown) control.append(make("option", { value, textContent: `${value} (not among the training values)` }));
  control.value = value;
}

const isTyping = () => $("fields").contains(document.activeElement) && document.activeElement.type !== "file";

function imageForm() {
  const chooser = make("input", { type: "file", accept: "image/*", id: "file" });
  const preview = make("img", { className: "shown", alt: "The chosen image", hidden: true });
  const caption = make("p", { className: "hint", dir: "auto" });
  const drop = make("div", { className: "drop" },
    make("label", { htmlFor: "file", textContent: "Drop an image here, or choose a file" }), chooser, preview, caption);
  const show = () => {
    if (preview.src) URL.revokeObjectURL(preview.src);
    const size = `${file.name}, ${bytes(file.size)}`;
    caption.textContent = size;
    preview.onload = () => {
      preview.classList.toggle("small", preview.naturalWidth < 96);
      caption.textContent = `${size}, ${preview.naturalWidth} x ${preview.naturalHeight} pixels`;
    };
    preview.onerror = () => { preview.hidden = true; };  // of a format that only the server reads
    preview.src = URL.createObjectURL(file);
    preview.hidden = false;
  };
  const choose = chosen => {
    file = chosen;
    show();
    predict();
  };
  chooser.addEventListener("change", () => chooser.files[0] && choose(chooser.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) drop.addEventListener(kind, event => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) choose(event.dataTransfer.files[0]);
  });
  if (file) show();
  const read = () => {
    if (!file) throw new Error("Choose an image first.");
    const body = new FormData();
    body.append("file", file);
    body.append("top_k", "5");
    return { body, headers: {} };
  };
  const sample = () => {
    const content = Uint8Array.from(atob(example()[0].b64), character => character.charCodeAt(0));
    choose(new File([content], "sample.png", { type: "image/png" }));
  };
  return { nodes: [drop], controls: new Map(), read, sample };
}

function tableForm(columns) {
  const values = new Map(), controls = new Map(), nodes = [];
  for (const [name, column] of Object.entries(columns)) {
    const isCategory = !!column.examples;
    const isNumber = !isCategory && !column.type.includes("string");
    const input = isCategory
      ? make("select", {}, make("option", { value: "", textContent: "(missing)" }),
        ...column.examples.map(value => make("option", { value, textContent: value })))
      : make("input", isNumber ? { type: "number", step: "any" } : { type: "text", dir: "auto" });
    controls.set(name, input);
    values.set(name, () => input.value === "" ? null : isNumber ? Number(input.value) : input.value);
    nodes.push(field(name, input, column.description));
  }
  const fill = () => {
    const [first] = example();
    for (const [name, input] of controls) {
      input.value = typeof first[name] === "number" ? Number(first[name].toPrecision(6)) : first[name] ?? "";
    }
  };
  fill();
  const read = () => asJson([Object.fromEntries([...values].map(([name, value]) => [name, value()]))], { top_k: 5 });
  return { nodes, controls, read, className: "grid", sample: () => { fill(); predict(); } };
}

function textForm() {
  const name = writesText() ? "Prompt" : "Text", text = make("textarea", { required: true, dir: "auto" });
  const controls = new Map([[name, text]]), nodes = [field(name, text)], numbers = new Map();
  if (writesText()) {
    const grid = make("div", { className: "grid" });
    for (const [option, { type, description }] of Object.entries(optionsOf())) if (type !== "boolean") {
      numbers.set(option, make("input", { type: "number", step: "any", value: option === "max_tokens" ? 100 : "" }));
      grid.append(field(option, numbers.get(option), description));
    }
    nodes.push(make("details", {}, make("summary", { textContent: "Options" }), grid));
  }
  const chosen = () => Object.fromEntries([...numbers].filter(([, input]) => input.value !== "")
    .map(([option, input]) => [option, Number(input.value)]));
  const read = () => ({
    ...asJson([text.value], writesText() ? { ...chosen(), stream: true } : { top_k: 5 }),
    prompt: writesText() ? text.value : undefined,
  });
  const sample = () => { text.value = example()[0]; predict(); };
  return { nodes, controls: new Map([...controls, ...numbers]), read, sample };
}

function jsonForm() {
  const text = make("textarea"), fill = () => { text.value = JSON.stringify(example()); };
  fill();
  const read = () => {
    try { return asJson(JSON.parse(text.value), { top_k: 5 }); } catch (error) { throw new Error(`Input as JSON: ${error.message}`); }
  };
  const nodes = [field("Input as JSON", text, "as the field input of /v1/predict")];
  return { nodes, controls: new Map([["Input as JSON", text]]), read, sample: () => { fill(); predict(); } };
}
