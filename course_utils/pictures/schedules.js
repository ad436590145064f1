// The pipeline schedules once more, for the explorer; a test holds them equal to course_utils/schedules.py.
const rounds = (p, m) => Math.max(1, Math.floor(m / p));

// Why there is no such schedule; "" if there is.
function wrong(name, p, m) {
  if (name !== "interleaved") return "";
  if (p < 2) return "Interleaved sends micro-batches round and round through the ranks: it needs 2 or more.";
  let more = m;
  while (more % rounds(p, more)) more++;
  const n = rounds(p, m), why = `Interleaved takes them in ${n} equal rounds here, and ${m} is no multiple of ${n}`;
  return more === m ? "" : `${why}: take ${more}.`;
}

// One rank's [["F", "B" or "W", part, micro-batch], ...]; with a W, B is the input half of a backward.
function order(name, rank, p, m, v) {
  const out = [];
  const add = (kind, micro, part = rank) => { if (micro >= 0 && micro < m) out.push([kind, part, micro]); };
  if (name === "naive") for (let k = 0; k < m; k++) { add("F", k); add("B", k); }
  if (name === "GPipe") for (const kind of "FB") for (let k = 0; k < m; k++) add(kind, k);
  if (name === "1F1B" || name === "zero-bubble") {
    const ahead = Math.min(p - rank, m);
    for (let k = 0; k < ahead; k++) add("F", k);
    for (let k = 0; k < m + rank; k++) {
      add("B", k);
      if (name === "zero-bubble") add("W", k - rank);
      add("F", k + ahead);
    }
  }
  if (name === "interleaved") {
    const size = m / rounds(p, m), total = m * v, ahead = Math.min((v - 1) * size + 2 * (p - 1 - rank), total);
    const work = (kind, k) => {
      const within = k % (size * v), chunk = Math.floor(within / size);
      add(kind, Math.floor(k / (size * v)) * size + within % size, (kind === "F" ? chunk : v - 1 - chunk) * p + rank);
    };
    for (let k = 0; k < ahead; k++) work("F", k);
    for (let k = 0; k < total; k++) {
      if (k + ahead < total) work("F", k + ahead);
      work("B", k);
    }
  }
  return out;
}

const orders = (name, p, m, v) => Array.from({length: p}, (_, rank) => order(name, rank, p, m, v));
const split = all => all.flat().some(([kind]) => kind === "W");

// [[rank, "F", "B", "W" or, for a message, "S", part, micro-batch, start, end], ...]
function simulate(all, v, forward, backward, link) {
  const p = all.length, at = all.map(() => 0), clock = all.map(() => 0), arrives = {}, spans = [];
  const takes = {F: forward, B: split(all) ? backward / 2 : backward, W: backward / 2};
  const isPart = part => part >= 0 && part < p * v;
  for (let moved = true; moved;) {
    moved = false;
    all.forEach((order, rank) => {
      for (; at[rank] < order.length; at[rank]++, moved = true) {
        const [kind, part, micro] = order[at[rank]], ahead = kind === "F" ? 1 : -1;
        if (kind !== "W" && isPart(part - ahead)) {
          const came = arrives[[kind, part - ahead, micro]];
          if (came === undefined) break;
          clock[rank] = Math.max(clock[rank], came);
        }
        const end = clock[rank] + takes[kind] / v;
        spans.push([rank, kind, part, micro, clock[rank], end]);
        clock[rank] = end;
        if (kind !== "W" && isPart(part + ahead)) {
          arrives[[kind, part, micro]] = end + link;
          if (link) spans.push([rank, "S", part, micro, end, end + link]);
        }
      }
    });
  }
  return spans;
}

// By rank: micro-batches whose activations it holds at the most.
function held(all, v) {
  const change = {F: 1, B: split(all) ? 0 : -1, W: -1};
  return all.map(order => {
    let now = 0;
    return Math.max(...order.map(([kind]) => now += change[kind])) / v;
  });
}
