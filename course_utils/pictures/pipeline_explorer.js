// A row of boxes a rank, and the time below; `colors` has a full and a pale one for each kind of span.
function frame(spans, p, colors) {
  const end = Math.max(...spans.map(s => s[5])), percent = t => (100 * t / end).toFixed(4) + "%";
  const shown = spans.filter(s => spans.length <= 600 || s[1] !== "S");  // so many are too thin to tell apart
  const box = ([, kind, part, micro, from, to]) => {
    const odd = Math.floor(part / p) % 2, sent = kind === "S", text = sent || to - from < .016 * end ? "" : micro;
    return `<div style="position:absolute;left:${percent(from)};width:${percent(to - from)};overflow:hidden;` +
      `${sent ? "top:23px;height:3px" : "top:0;height:22px"};background:${colors[kind][odd]};color:` +
      `${kind === "F" && !odd ? "white" : "black"};box-shadow:inset ` +
      `${odd ? "0 0 0 1px " + colors[kind][0] : "-1px 0 #808080"}">${text}</div>`;
  };
  const rows = Array.from({length: p}, (_, rank) => `<div style="padding-right:8px">rank ${rank}</div><div ` +
    'style="position:relative;height:28px;text-align:center;line-height:22px;font-size:11px;' +
    `background:rgba(128,128,128,.3)">${shown.filter(s => s[0] === rank).map(box).join("")}</div>`);
  const every = [1, 2, 5, 10, 20, 50, 100].find(n => end / n <= 16), marks = [];
  for (let t = 0; t < end; t += every) marks.push(`<div style="position:absolute;left:${percent(t)}">${t}</div>`);
  return `<div style="display:grid;grid-template-columns:max-content 1fr;gap:3px 0">${rows.join("")}<div ` +
    'style="opacity:.75">t</div><div style="position:relative;height:18px;opacity:.75;font-size:11px">' +
    `${marks.join("")}</div></div>`;
}

// The sentence below: step, bubble (with its formula where it holds), activations, and when all ranks are busy.
function says(spans, held, p, m, v, name) {
  const work = spans.filter(s => s[1] !== "S"), end = Math.max(...spans.map(s => s[5])), at = [];
  const idle = 1 - work.reduce((sum, s) => sum + s[5] - s[4], 0) / (p * end);
  for (let t = 0; t + 1 <= end + 1e-9; t++) {
    const inside = Array(p).fill(0);
    work.forEach(s => { inside[s[0]] += Math.max(0, Math.min(s[5], t + 1) - Math.max(s[4], t)); });
    if (Math.min(...inside) > 1 - 1e-6) at.push(t);
  }
  const [times, words] = name === "zero-bubble" ? [3, "3 m"] : [v, v > 1 ? "v m" : "m"], all = times * m + p - 1;
  const formula = `: (p \u2212 1)/(${words} + p \u2212 1) = ${p - 1}/${all}`;
  return `One step takes ${+end.toFixed(2)}. Ranks wait ${(100 * idle + 1e-9).toFixed(1)} % of it` +
    `${Math.abs(idle - (p - 1) / all) < 1e-6 ? formula : ""}. Micro-batches whose activations a rank holds at the ` +
    `most: ${held.map(h => +h.toFixed(2)).join(", ")}. ` + (at.length ? "All ranks are busy at t = " +
    `${at.slice(0, 12).join(", ")}${at.length > 12 ? ", \u2026" : ""}.` : "At no t are all ranks busy.");
}

// Finds every explorer of the page that has no controls yet: several on one page do not meet.
function build(root) {
  root.setAttribute("data-ready", "");
  const {state, names, controls, colors, legend} = JSON.parse(root.querySelector("[type='application/json']").textContent);
  const [stage, line, key] = ["stage", "line", "key"].map(part => root.querySelector(`[data-${part}]`));
  const bar = document.createElement("div"), inputs = {};
  bar.style.cssText = "display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:4px 20px;" +
    "padding:4px 0";
  function row(words, element, style) {
    const label = document.createElement("label"), name = document.createElement("span");
    label.style.cssText = "display:flex;align-items:center;gap:8px";
    name.textContent = words; name.style.cssText = "min-width:112px"; element.style.cssText = style;
    label.append(name, element); bar.append(label);
    return label;
  }
  const select = document.createElement("select");
  select.append(...names.map(name => new Option(name, name)));
  select.onchange = () => { state.name = select.value; show(); };
  row("schedule", select, "font:inherit;color:CanvasText;background:Canvas");
  for (const [what, words, min, max, step] of controls) {
    const input = Object.assign(document.createElement("input"), {type: "range", min, max, step});
    const value = document.createElement("output");
    input.oninput = () => { state[what] = +input.value; show(); };
    value.style.cssText = "min-width:24px;font-weight:600";
    row(words, input, "flex:1;min-width:60px").append(value);
    inputs[what] = [input, value];
  }
  root.insertBefore(bar, stage);
  root.addEventListener("keydown", event => event.stopPropagation());
  key.innerHTML = legend;
  function show() {
    const {name, p, m, ratio, link} = state, chunked = name === "interleaved", v = chunked ? state.v : 1;
    select.value = name;
    for (const what in inputs) { inputs[what][0].value = state[what]; inputs[what][1].textContent = state[what]; }
    inputs.v[0].disabled = !chunked;
    inputs.v[0].parentNode.style.opacity = chunked ? 1 : .5;
    const why = wrong(name, p, m);
    stage.style.opacity = why ? .25 : 1;
    if (why) { line.textContent = why; return; }
    const all = orders(name, p, m, v), spans = simulate(all, v, 1, ratio, link);
    stage.innerHTML = frame(spans, p, colors);
    line.textContent = says(spans, held(all, v), p, m, v, name);
  }
  show();
}
document.querySelectorAll("[data-course-pipeline]:not([data-ready])").forEach(build);
