// Finds every player of the page that has no controls yet, so that several copies of this script do not meet, and no
// player needs an id. Without JavaScript there are no dead buttons: only the first frame is in the page.
function build(root) {
  root.setAttribute("data-ready", "");
  var data = JSON.parse(root.querySelector("script[type='application/json']").textContent), at = 0, timer = null;
  var stage = root.querySelector("[data-stage]"), line = root.querySelector("[data-line]");
  var bar = document.createElement("div"), n = data.frames.length;
  bar.style.cssText = "display:flex;align-items:center;gap:6px;padding:4px 0";
  function button(sign, name, act) {
    var b = document.createElement("button");
    b.type = "button"; b.textContent = sign; b.title = name; b.setAttribute("aria-label", name); b.onclick = act;
    b.style.cssText = "font:inherit;color:inherit;background:rgba(128,128,128,.15);min-width:34px;height:28px;" +
      "border:1px solid #808080;border-radius:4px;cursor:pointer";
    bar.appendChild(b); return b;
  }
  function show(i) {
    at = Math.max(0, Math.min(n - 1, i));
    stage.innerHTML = data.frames[at];
    line.textContent = (at + 1) + " of " + n + ": " + data.captions[at];
    slider.value = at; slider.setAttribute("aria-valuetext", line.textContent);
    back.disabled = at === 0; next.disabled = at === n - 1;
    back.style.opacity = at === 0 ? .4 : 1; next.style.opacity = at === n - 1 ? .4 : 1;
  }
  function stop() {
    clearInterval(timer); timer = null; play.textContent = "\u25B6"; play.title = "Play";
    play.setAttribute("aria-label", "Play");
  }
  function go(i) { stop(); show(i); }
  function toggle() {
    if (timer) { stop(); return; }
    if (at === n - 1) show(0);
    play.textContent = "\u275A\u275A"; play.title = "Pause"; play.setAttribute("aria-label", "Pause");
    timer = setInterval(function () {
      if (!root.isConnected) { clearInterval(timer); return; }
      show(at + 1); if (at === n - 1) stop();
    }, 1000);
  }
  var back = button("\u2039", "Step back", function () { go(at - 1); });
  var play = button("\u25B6", "Play", toggle);
  var next = button("\u203A", "Step forward", function () { go(at + 1); });
  var slider = document.createElement("input");
  slider.type = "range"; slider.min = 0; slider.max = n - 1; slider.step = 1;
  slider.style.cssText = "flex:1;max-width:260px;min-width:80px"; slider.setAttribute("aria-label", "Step");
  slider.oninput = function () { go(+slider.value); };
  bar.appendChild(slider);
  root.insertBefore(bar, line);
  root.addEventListener("keydown", function (e) {
    var to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: n - 1}[e.key];
    if (to !== undefined) { e.preventDefault(); go(to); }
    e.stopPropagation();
  });
  show(0);
}
document.querySelectorAll("[data-course-player]:not([data-ready])").forEach(build);
