// The pipeline schedules once more, for the explorer; a test holds them equal to theory/schedules.py.
// orders(name, p, m, v): for every rank, [["F" or "B", part, micro-batch], ...].
// simulate(orders, p, v, forward, backward, link): [[rank, "F" | "B" | "S", part, micro-batch, start, end], ...].
var pipeline = (function () {
  function wrong(name, p, m, v) {
    if (name !== "interleaved") return "";
    if (p < 2) return "Interleaved sends micro-batches round and round through the ranks: it needs 2 or more.";
    if (m % p) return "Interleaved takes micro-batches " + p + " at a time: take a multiple of " + p + ".";
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
    if (name === "interleaved") {
      var work = function (kind, k) {
        var turn = Math.floor(k / (p * v)), within = k % (p * v), chunk = Math.floor(within / p);
        if (kind === "B") chunk = v - 1 - chunk;
        return [kind, chunk * p + rank, turn * p + within % p];
      };
      ahead = Math.min((v - 1) * p + 2 * (p - 1 - rank), m * v);
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
    for (rank = 0; rank < p; rank++) { at.push(0); clock.push(0); }
    while (moved) {
      moved = false;
      for (rank = 0; rank < p; rank++) {
        while (at[rank] < all[rank].length) {
          var step = all[rank][at[rank]], kind = step[0], part = step[1], micro = step[2];
          var ahead = kind === "F" ? 1 : -1;
          if (part - ahead >= 0 && part - ahead <= last) {
            var came = ready[kind + (part - ahead) + "," + micro];
            if (came === undefined) break;
            clock[rank] = Math.max(clock[rank], came);
          }
          var end = clock[rank] + (kind === "F" ? forward : backward) / v;
          spans.push([rank, kind, part, micro, clock[rank], end]);
          clock[rank] = end;
          if (part + ahead >= 0 && part + ahead <= last) {
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
  function held(all, v) {
    return all.map(function (order) {
      var now = 0, most = 0;
      order.forEach(function (step) { now += step[0] === "F" ? 1 : -1; most = Math.max(most, now); });
      return most / v;
    });
  }
  return {wrong: wrong, orders: orders, simulate: simulate, held: held};
})();
