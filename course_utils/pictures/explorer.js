// Finds every explorer of the page that has no controls yet: several on one page do not meet.
function build(root) {
  root.setAttribute("data-ready", "");
  var start = JSON.parse(root.querySelector("script[type='application/json']").textContent), state = start.state;
  var stage = root.querySelector("[data-stage]"), line = root.querySelector("[data-line]"), inputs = {};
  var bar = document.createElement("div");
  bar.style.cssText = "display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:4px 20px;" +
    "padding:4px 0";
  function row(words, element) {
    var label = document.createElement("label"), name = document.createElement("span");
    label.style.cssText = "display:flex;align-items:center;gap:8px";
    name.textContent = words; name.style.cssText = "min-width:112px";
    label.appendChild(name); label.appendChild(element); bar.appendChild(label);
    return label;
  }
  var select = document.createElement("select");
  start.names.forEach(function (name) { select.add(new Option(name, name)); });
  select.style.cssText = "font:inherit;color:CanvasText;background:Canvas";
  select.onchange = function () { state.name = select.value; show(); };
  row("schedule", select);
  start.controls.forEach(function (c) {
    var input = document.createElement("input"), value = document.createElement("output");
    input.type = "range"; input.min = c[2]; input.max = c[3]; input.step = c[4];
    input.style.cssText = "flex:1;min-width:60px"; value.style.cssText = "min-width:24px;font-weight:600";
    input.oninput = function () { state[c[0]] = +input.value; show(); };
    row(c[1], input).appendChild(value);
    inputs[c[0]] = [input, value];
  });
  root.insertBefore(bar, stage);
  root.addEventListener("keydown", function (e) { e.stopPropagation(); });
  function show() {
    select.value = state.name;
    for (var key in inputs) { inputs[key][0].value = state[key]; inputs[key][1].textContent = state[key]; }
    var v = state.name === "interleaved" ? state.v : 1, p = state.p, m = state.m;
    inputs.v[0].disabled = state.name !== "interleaved";
    inputs.v[0].parentNode.style.opacity = inputs.v[0].disabled ? .5 : 1;
    var wrong = pipeline.wrong(state.name, p, m, v);
    stage.style.opacity = wrong ? .25 : 1;
    if (wrong) { line.textContent = wrong; return; }
    var all = pipeline.orders(state.name, p, m, v);
    var spans = pipeline.simulate(all, p, v, 1, state.ratio, state.link);
    stage.innerHTML = picture.frame(spans, p);
    line.textContent = picture.says(spans, pipeline.held(all, v), p, m, v, state.name);
  }
  show();
}
document.querySelectorAll("[data-course-pipeline]:not([data-ready])").forEach(build);
