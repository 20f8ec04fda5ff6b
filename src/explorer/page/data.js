// The document with its arrays and runs, and the state of the page.

/** The page's state: the selected run, token, view, layer, head and stage. */
const state = { run: 0, position: 0, view: "residual", layer: 0, head: 0, stage: 13, key: null, tour: 0 };
let page; // the document

const KINDS = {
  uint8: Uint8Array, bfloat16: Uint16Array, int32: Int32Array, float32: Float32Array,
  float64: Float64Array,
};
const blocks = new Map();

/** Decompress the content of an element in this file. */
async function inflate(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** Return the typed array for a reference, decompressing it once. For bfloat16, it contains the bits. */
function arrayOf(reference) {
  const id = `block-${reference.block}`;
  if (!blocks.has(id)) {
    blocks.set(id, inflate(id).then((buffer) => new KINDS[reference.dtype](buffer)));
  }
  return blocks.get(id);
}

const floatBits = new DataView(new ArrayBuffer(4));

/** Convert the 16 bits of a bfloat16 value to a number. */
function fromBfloat16(bits) {
  floatBits.setUint32(0, bits << 16);
  return floatBits.getFloat32(0);
}

/** Return element i of a stored array as a number. */
function numberAt(array, dtype, i) {
  return dtype === "bfloat16" ? fromBfloat16(array[i]) : array[i];
}

const UNSAFE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/gu;

/** Return untrusted text in a form that is safe to show: escaped and truncated. */
function shown(text, most = 40) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(UNSAFE, (c) => (c === "\n" ? "\\n" : c === "\t" ? "\\t"
    : `\\u{${c.codePointAt(0).toString(16)}}`));
}

/** One run in the document. */
class Run {
  constructor(record) {
    Object.assign(this, record);
    this.processed = Math.max(...this.passes.map((one) => one.start + one.T));
    this.L = this.sizes.L;
    this.H = this.sizes.H;
    this.depths = this.L + 1;
    this.drawnFrom = new Map(); // position of a sampled token -> pass that sampled it
    this.passes.forEach((one, n) => {
      one.number = n;
      if (one.token !== undefined) this.drawnFrom.set(one.start + one.T, one);
    });
    this.promptLength = Math.min(...this.drawnFrom.keys(), this.tokens.length);
  }

  text(id) {
    const found = this.texts[id];
    return found ? found[0] : `token ${id}`;
  }

  /** Return the quoted text of a token, or the name of a special token. */
  label(id, most = 24) {
    const found = this.texts[id];
    if (!found) return `token ${id}`;
    return found[1] ? shown(found[0], most) : `'${shown(found[0], most)}'`;
  }

  /** Return the pass that processed the token at a position, or the last pass if none did. */
  passOf(position) {
    return this.passes.find((one) => position < one.start + one.T) ?? this.passes.at(-1);
  }

  /** Return the position whose logits decided the answer's first token, or the last position without an answer. */
  get deciding() {
    return this.drawnFrom.size ? this.promptLength - 1 : this.tokens.length - 1;
  }

  /** Return the probability of the token that a pass sampled, before any filter, or null if it is not stored. */
  chanceOf(one) {
    return one.choice.candidates.find((x) => x.token_id === one.token)?.probabilities[0] ?? null;
  }

  /** Return the pass that sampled the token at a position, or for the prompt, the answer's first token. */
  drawOf(position) {
    return this.drawnFrom.get(position) ?? this.drawnFrom.get(this.promptLength) ?? null;
  }

  /** Return the name of a head, such as "previous token", or null. */
  headName(layer, head) {
    return this.heads.kinds[this.heads.names[layer][head]] ?? null;
  }

  query(position) {
    return Math.min(position, this.processed - 1);
  }

  depthName(depth) {
    return depth === 0 ? "embedding" : `layer ${depth - 1}`;
  }

  /**
   * Return a function of (layer, head, position) that returns the head's attention weights
   * [0..position] in units of 1/255, or null if they were omitted.
   */
  async attention() {
    const rows = range(this.processed).map(() => null); // by position: the location of each head's row
    for (const one of this.passes) {
      if (!one.attention) continue;
      const data = await arrayOf(one.attention.data);
      const end = one.start + one.T;
      const first = end - one.attention.rows;
      for (let p = first, at = 0; p < end; at += ++p) rows[p] = { data, at, entries: one.attention.data.shape[2] };
    }
    return (layer, head, position) => {
      const row = rows[position];
      if (row === null) return null;
      const at = (layer * this.H + head) * row.entries + row.at;
      return row.data.subarray(at, at + position + 1);
    };
  }

  /** Return a function of (layer, position) that returns pairs [expert, weight], or null if they were omitted; null for a model without experts. */
  async experts() {
    const places = range(this.processed).map(() => null); // by position: the arrays and the row
    for (const one of this.passes) {
      if (!one.experts) continue;
      const [numbers, weights] = await Promise.all([arrayOf(one.experts.numbers), arrayOf(one.experts.weights)]);
      for (const row of range(one.T)) places[one.start + row] = { numbers, weights, row, T: one.T };
    }
    if (places.every((place) => place === null)) return null;
    const { A } = this.sizes;
    return (layer, position) => {
      const place = places[position];
      if (place === null) return null;
      const at = (layer * place.T + place.row) * A;
      return range(A).map((n) => [place.numbers[at + n], place.weights[at + n]]);
    };
  }

  /** Return a function of (layer, head, position) that returns the weight of the head's sink in units of 1/255, or null. */
  async sinks() {
    const places = range(this.processed).map(() => null); // by position: the array, its row and the number of its rows
    for (const one of this.passes) {
      if (!one.sinks) continue;
      const data = await arrayOf(one.sinks);
      const rows = one.sinks.shape[2], first = one.start + one.T - rows;
      range(rows).forEach((row) => { places[first + row] = { data, row, rows }; });
    }
    return (layer, head, position) => {
      const place = this.hasSinks[layer] ? places[position] : null;
      return place && place.data[(layer * this.H + head) * place.rows + place.row];
    };
  }

  /** Return the first position that a token sees in a layer. */
  firstSeen(layer, position) {
    const window = this.windows[layer];
    return window === null ? 0 : Math.max(0, position + 1 - window);
  }

  /** Return the logit lens at a position (tokens, logits, probabilities, entropies), or null if omitted. */
  async lensOf(position) {
    const one = this.passOf(position);
    if (!one.lens || position >= one.start + one.T) return null;
    const row = position - (one.start + one.T - one.lens.rows);
    if (row < 0) return null;
    const names = ["ids", "starts", "logits", "log_sums", "entropies", "top"];
    const [ids, starts, logits, sums, entropies, top] =
      await Promise.all(names.map((name) => arrayOf(one.lens[name])));
    const n = this.depths;
    const own = ids.subarray(starts[row], starts[row + 1]);
    const count = one.lens.top.shape[2];
    const logit = (depth, id) => {
      const at = own.indexOf(id);
      return at < 0 ? null : logits[(starts[row] + at) * n + depth];
    };
    const chance = (depth, id) => {
      const found = logit(depth, id);
      return found === null ? null : Math.exp(found - sums[row * n + depth]);
    };
    return {
      ids: own, logit, chance,
      entropy: (depth) => entropies[row * n + depth],
      top: (depth) => [...top.subarray((row * n + depth) * count, (row * n + depth + 1) * count)],
    };
  }

  /** Return the measurements of the residual stream at a position, or null if omitted. */
  async residualOf(position) {
    const one = this.passOf(position);
    if (!one.residual || position >= one.start + one.T) return null;
    const data = await arrayOf(one.residual);
    const at = (row) => data[row * one.T + position - one.start];
    const L = this.L;
    return {
      rms: (half) => at(half), // 0 is the embedding, then attention and feed-forward alternate
      norm: (half) => at(2 * L + 1 + half),
      cosine: (half) => at(4 * L + 1 + half),
    };
  }

  /**
   * Return the tensors whose elements are stored, and the views and copies of stored tensors.
   * Element [i, j, ...] is at offsets[0][i] + offsets[1][j] + ... in the stored array. `axis` is the token axis, if any,
   * and `first` is the first stored token.
   */
  kept() {
    const entries = [];
    const latest = new Map(); // id of a tensor -> its latest entry; passes write to the same cache
    for (const event of this.events) {
      const [pass, stage, layer, op, inputs, [[info, id]]] = event;
      const [name, shape, letters, dtype] = this.tensors[info];
      const about = { pass, stage, layer, op, name, shape, letters, dtype };
      const source = latest.get(inputs[0]?.[1]);
      let entry = null;
      if (event[11]) {
        const [reference, axis, first] = event[11];
        const stored = dtype === "complex64" ? reference.shape.slice(0, -1) : reference.shape;
        entry = { ...about, reference, axis, first, offsets: offsetsOf(stored), isView: false };
      } else if (source && VIEW_OPS[op]) {
        const view = VIEW_OPS[op](source, shape, event[10]);
        entry = view && { ...source, ...about, ...view, isView: true };
      }
      if (entry) entries.push(entry);
      latest.set(id, entry);
    }
    return entries;
  }
}

/** Return the offsets of each axis of a contiguous array. */
function offsetsOf(shape) {
  return shape.map((n, axis) => {
    const stride = shape.slice(axis + 1).reduce((a, b) => a * b, 1);
    return range(n).map((i) => i * stride);
  });
}

// Ops without new elements: the offsets and the token axis of the result, from those of the input.
const VIEW_OPS = {
  /** Split the last axis in two, such as [T, H*h] -> [T, H, h]. */
  reshape({ offsets }, shape) {
    const width = shape.at(-1), last = offsets.at(-1);
    if (shape.length !== offsets.length + 1) return null;
    return { offsets: [...offsets.slice(0, -1), last.filter((_, i) => i % width === 0), last.slice(0, width)] };
  },

  transpose({ offsets, axis }, _shape, { a, b }) {
    const swapped = [...offsets];
    [swapped[a], swapped[b]] = [offsets[b], offsets[a]];
    return { offsets: swapped, axis: { [a]: b, [b]: a }[axis] ?? axis };
  },

  /** Repeat each head, such as [S, K, h] -> [S, H, h]. */
  repeat_heads({ offsets }, _shape, { repeats }) {
    return { offsets: [offsets[0], offsets[1].flatMap((x) => Array(repeats).fill(x)), offsets[2]] };
  },
};

const range = (n) => Array.from({ length: n }, (_, i) => i);
const currentRun = () => page.runs[state.run];

/** Format a number with n significant digits. */
function digits(x, n = 4) {
  if (x === null || x === undefined) return "–";
  if (!Number.isFinite(x)) return String(x);
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e6)) return x.toExponential(n - 2);
  return String(Number(x.toPrecision(n)));
}

const percent = (p) => (p === null ? "–" : p >= 0.0001 || p === 0 ? `${(100 * p).toFixed(2)}\u00a0%` : "<0.01\u00a0%");
const duration = (s) => (s === null ? "–" : s < 1e-3 ? `${digits(s * 1e6, 3)}\u00a0µs` : `${digits(s * 1e3, 3)}\u00a0ms`);
const amount = (n) => n.toLocaleString("en");
const count = (n, noun) => `${amount(n)} ${noun}${n === 1 ? "" : "s"}`;
