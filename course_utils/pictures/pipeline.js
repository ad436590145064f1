// What the page shows, from spans: frame() the boxes, says() the line below. explorer.py has the same for the start.
var picture = (function () {
  var COLORS = {F: ["#0072B2", "#99C7E0"], B: ["#D55E00", "#EEBF99"], W: ["#009E73", "#99D8C7"],
    S: ["#8A63D2", "#8A63D2"]};
  function box(span, p, end) {
    var kind = span[1], odd = Math.floor(span[2] / p) % 2, left = 100 * span[4] / end;
    var wide = 100 * (span[5] - span[4]) / end, sent = kind === "S";
    return '<div style="position:absolute;left:' + left.toFixed(4) + "%;width:" + wide.toFixed(4) + "%;top:" +
      (sent ? "23px;height:3px" : "0;height:22px") + ";background:" + COLORS[kind][odd] + ";color:" +
      (kind === "F" && !odd ? "white" : "black") + ";box-shadow:inset " +
      (odd ? "0 0 0 1px " + COLORS[kind][0] : "-1px 0 #808080") + ';overflow:hidden">' +
      (sent || wide < 1.6 ? "" : span[3]) + "</div>";
  }
  function frame(spans, p) {
    var end = 0, rows = "", rank, t, marks = "";
    spans.forEach(function (s) { end = Math.max(end, s[5]); });
    if (spans.length > 600) spans = spans.filter(function (s) { return s[1] !== "S"; });  // too thin to tell apart
    for (rank = 0; rank < p; rank++) {
      rows += '<div style="padding-right:8px">rank ' + rank + '</div><div style="position:relative;height:28px;' +
        'text-align:center;line-height:22px;font-size:11px;background:rgba(128,128,128,.12)">' +
        spans.filter(function (s) { return s[0] === rank; }).map(function (s) { return box(s, p, end); }).join("") +
        "</div>";
    }
    var every = [1, 2, 5, 10, 20, 50, 100].filter(function (n) { return end / n <= 16; })[0];
    for (t = 0; t < end; t += every) {
      marks += '<div style="position:absolute;left:' + (100 * t / end).toFixed(4) + '%">' + t + "</div>";
    }
    return '<div style="display:grid;grid-template-columns:max-content 1fr;gap:3px 0">' + rows +
      '<div style="opacity:.75">t</div><div style="position:relative;height:18px;opacity:.75;font-size:11px">' + marks +
      "</div></div>";
  }
  function busyAt(spans, p) {
    var end = 0, found = [], t;
    spans.forEach(function (s) { end = Math.max(end, s[5]); });
    for (t = 0; t + 1 <= end + 1e-9; t++) {
      var all = true;
      for (var rank = 0; rank < p && all; rank++) {
        var covered = 0;
        spans.forEach(function (s) {
          if (s[0] === rank && s[1] !== "S") covered += Math.max(0, Math.min(s[5], t + 1) - Math.max(s[4], t));
        });
        all = covered > 1 - 1e-6;
      }
      if (all) found.push(t);
    }
    return found;
  }
  function says(spans, held, p, m, v, name) {
    var end = 0, busy = 0, at = busyAt(spans, p);
    spans.forEach(function (s) { end = Math.max(end, s[5]); if (s[1] !== "S") busy += s[5] - s[4]; });
    var text = "One step takes " + +end.toFixed(2) + ". Ranks wait " + (100 * (1 - busy / (p * end)) + 1e-9).toFixed(1) + " %";
    var times = name === "zero-bubble" ? 3 : v, words = name === "zero-bubble" ? "3 m" : v > 1 ? "v m" : "m";
    var all = times * m + p - 1;
    text += " of it";
    if (Math.abs(1 - busy / (p * end) - (p - 1) / all) < 1e-6) {
      text += ": (p \u2212 1)/(" + words + " + p \u2212 1) = " + (p - 1) + "/" + all;
    }
    text += ". Micro-batches whose activations a rank holds at the most: " +
      held.map(function (h) { return +h.toFixed(2); }).join(", ") + ". ";
    if (!at.length) return text + "At no t are all ranks busy.";
    return text + "All ranks are busy at t = " + at.slice(0, 12).join(", ") + (at.length > 12 ? ", \u2026" : "") + ".";
  }
  return {frame: frame, says: says};
})();
