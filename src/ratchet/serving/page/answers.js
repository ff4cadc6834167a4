// Answers and explanations.
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
    return make("li", {}, make("bdi", { textContent: name }), make("span", { className: "value", textContent: asText(value) }), svg);
  }));
}

const percent = value => `${(100 * value).toFixed(1)} %`;
const number = value => value.toLocaleString("en", { maximumSignificantDigits: 6 });
const signed = value => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toPrecision(3)}`;
const duration = ms => ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
const kib = count => `${(count / 1024).toFixed(1)} KiB`;
const bytes = count => count < 1024 ? `${count} bytes` : count < 1048576 ? kib(count) : `${(count / 1048576).toFixed(1)} MiB`;

const isolated = name => `\u2068${name}\u2069`;  // a name in another direction of writing turns no other words round

// The prompt and the text after it. `append` adds the next piece of a text that is being generated.
function showText(prompt) {
  const text = make("span");
  const before = make("span", { className: "prompt", textContent: prompt });
  $("answer").replaceChildren(make("p", { className: "text", dir: "auto" }, before, text));
  return { append: piece => text.append(piece) };
}

function showAnswer(answer, { prompt, ms }) {
  const prediction = answer.predictions[0], parts = [];
  const note = text => parts.push(make("p", { className: "none", textContent: text }));
  const result = text => parts.push(make("p", { className: "result", textContent: text, dir: "auto" }));
  if (!prediction) note("The input has no rows.");
  else if ("text" in prediction) {
    showText(prompt).append(prediction.text);
    parts.push(...$("answer").childNodes);
    if (!prediction.text) note("The model ended the text at once.");
  } else if (prediction.class !== undefined) {
    result(prediction.class);
    parts.push(bars((prediction.top || [prediction]).map(each => [each.class, each.probability]), percent));
  } else if (prediction.probabilities) parts.push(bars(Object.entries(prediction.probabilities), percent));
  else for (const [name, value] of Object.entries(prediction.values)) {
    parts.push(make("p", { className: "none", textContent: name, dir: "auto" }));
    result(number(value));
    const { description } = schema("Prediction").properties.values?.properties[name] || {};
    if (description) parts.push(make("p", { className: "hint", textContent: description }));
  }
  const warnings = answer.warnings?.[0] || [];  // about values of the row that no training sample has
  if (warnings.length) parts.push(make("ul", { className: "warnings" },
    ...warnings.map(text => make("li", { textContent: text, dir: "auto" }))));
  if (answer.instead) note(`The server is overloaded: this answer is from the ${answer.instead}.`);
  parts.push(make("p", { className: "ids", textContent: `Answered in ${duration(ms)}. Answer ${answer.id} of `
    + `${answer.model}/${answer.version}, provenance ${answer.provenance ?? "not recorded"}` }));
  $("answer").replaceChildren(...parts);
}

function showExplanation({ explanation, model, version, predictions }) {
  const parts = [make("h3", { textContent: `Explanation by ${model}/${version}` })];
  const note = text => parts.push(make("p", { className: "none", textContent: text }));
  if (explanation.kind === "pixels") {
    note(`Orange pixels support ${isolated(explanation.of)}, blue pixels support ${isolated(explanation.against)}.`);
    const image = make("img", { className: "shown", src: `data:image/png;base64,${explanation.png}`,
      alt: `The image with the pixels that support ${isolated(explanation.of)} and ${isolated(explanation.against)}` });
    image.onload = () => image.classList.toggle("small", image.naturalWidth < 96);
    parts.push(image);
  } else {
    note(explanation.kind === "columns"
      ? `How much the value of each column changes the output for ${isolated(explanation.of)}, compared with other training values.`
      : `How much each word changes the output for ${isolated(explanation.of)}, compared with the text without it.`);
    const isNumber = "values" in predictions[0], isShare = !isNumber && explanation.kind === "columns";
    note(isNumber ? `In the unit of ${isolated(explanation.of)}.` : isShare ? "In percentage points." : "In logits (log-odds).");
    const values = explanation.contributions.map(({ name, value }) => [name, isShare ? 100 * value : value]);
    parts.push(bars(values, isShare ? value => `${signed(value)} points` : signed, { largest: Math.max(...values.map(([, value]) => Math.abs(value))), signed: true }));
  }
  if (answered !== `${model}/${version}`) note(`${answered} gave the answer above.`);
  $("explanation").replaceChildren(...parts);
}

function failExplanation(error) {  // the answer above stays right
  $("explanation").replaceChildren(make("p", { className: "none", textContent: `There is no explanation: ${error.message}` }));
}

