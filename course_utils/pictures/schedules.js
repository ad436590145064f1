// The pipeline schedules once more, for the explorer; a test holds them equal to theory/schedules.py.
// orders(name, p, m, v): for every rank, [["F", "B" or "W", part, micro-batch], ...]; with a W, B is the input half.
// simulate(orders, p, v, forward, backward, link): [[rank, "F" | "B" | "W" | "S", part, micro-batch, start, end], ...].
var pipeline = (function () {
  function rounds(p, m) { return Math.max(1, Math.floor(m / p)); }
  function wrong(name, p, m, v) {
    if (name !== "interleaved") return "";
    if (p < 2) return "Interleaved sends micro-batches round and round through the ranks: it needs 2 or more.";
    var n = rounds(p, m), more = m;
    while (more % rounds(p, more)) more++;
    if (more !== m) return "Interleaved takes them in " + n + " equal rounds here, and " + m + " is no multiple of " + n +
      ": take " + more + ".";
    return "";
  }
  function order(name, rank, p, m, v) {
    var out = [], k, ahead;
    if (name === "naive") for (k = 0; k < m; k++) out.push(["F", rank, k], ["B", rank, k]);
    if (name === "GPipe") {
      for (k = 0; k < m; k++) out.push(["F", rank, k]);
      for (k = 0; k < m; k++) out.push(["B", rank, k]);
    }
    if (name === "1F1B") {
      ahead = Math.min(p - rank, m);
      for (k = 0; k < ahead; k++) out.push(["F", rank, k]);
      for (k = 0; k < m; k++) {
        out.push(["B", rank, k]);
        if (k + ahead < m) out.push(["F", rank, k + ahead]);
      }
    }
    if (name === "zero-bubble") {
      ahead = Math.min(p - rank, m);
      for (k = 0; k < ahead; k++) out.push(["F", rank, k]);
      for (k = 0; k < m + rank; k++) {
        if (k < m) out.push(["B", rank, k]);
        if (k >= rank && k - rank < m) out.push(["W", rank, k - rank]);
        if (k + ahead < m) out.push(["F", rank, k + ahead]);
      }
    }
    if (name === "interleaved") {
      var size = m / rounds(p, m), work = function (kind, k) {
        var turn = Math.floor(k / (size * v)), within = k % (size * v), chunk = Math.floor(within / size);
        if (kind === "B") chunk = v - 1 - chunk;
        return [kind, chunk * p + rank, turn * size + within % size];
      };
      ahead = Math.min((v - 1) * size + 2 * (p - 1 - rank), m * v);
      for (k = 0; k < ahead; k++) out.push(work("F", k));
      for (k = 0; k < m * v; k++) {
        if (k + ahead < m * v) out.push(work("F", k + ahead));
        out.push(work("B", k));
      }
    }
    return out;
  }
  function orders(name, p, m, v) {
    var all = [];
    for (var rank = 0; rank < p; rank++) all.push(order(name, rank, p, m, v));
    return all;
  }
  function simulate(all, p, v, forward, backward, link) {
    var at = [], clock = [], ready = {}, spans = [], moved = true, last = p * v - 1, rank;
    var takes = {F: forward, B: split(all) ? backward / 2 : backward, W: backward / 2};
    for (rank = 0; rank < p; rank++) { at.push(0); clock.push(0); }
    while (moved) {
      moved = false;
      for (rank = 0; rank < p; rank++) {
        while (at[rank] < all[rank].length) {
          var step = all[rank][at[rank]], kind = step[0], part = step[1], micro = step[2];
          var ahead = kind === "F" ? 1 : -1;
          if (kind !== "W" && part - ahead >= 0 && part - ahead <= last) {
            var came = ready[kind + (part - ahead) + "," + micro];
            if (came === undefined) break;
            clock[rank] = Math.max(clock[rank], came);
          }
          var end = clock[rank] + takes[kind] / v;
          spans.push([rank, kind, part, micro, clock[rank], end]);
          clock[rank] = end;
          if (kind !== "W" && part + ahead >= 0 && part + ahead <= last) {
            ready[kind + part + "," + micro] = end + link;
            if (link) spans.push([rank, "S", part, micro, end, end + link]);
          }
          at[rank]++;
          moved = true;
        }
      }
    }
    return spans;
  }
  function split(all) {
    return all.some(function (order) { return order.some(function (step) { return step[0] === "W"; }); });
  }
  function held(all, v) {
    var change = {F: 1, B: split(all) ? 0 : -1, W: -1};
    return all.map(function (order) {
      var now = 0, most = 0;
      order.forEach(function (step) { now += change[step[0]]; most = Math.max(most, now); });
      return most / v;
    });
  }
  return {wrong: wrong, orders: orders, simulate: simulate, held: held};
})();
