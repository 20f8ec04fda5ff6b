// The map view: the 21 stages, and the selected stage's ops, code and section in chapter 14.

const map = { pass: 0 };

async function mapView(root) {
  const run = currentRun();
  const last = Math.min(map.pass, new Set(run.events.map((event) => event[0])).size - 1);
  root.append(
    h("div", { class: "controls" },
      choice("map-pass", "pass", [...new Set(run.events.map((event) => event[0]))].map((n) => [n, n ? `${n}: one new token` : "0: the prompt"]), last, (x) => { map.pass = Number(x); show({}); }),
      choice("map-layer", "layer", range(run.L).map((l) => [l, l]), state.layer, (x) => show({ layer: Number(x) })),
      choice("map-stage", "stage", page.stages.map((one) => [one.number, `${one.number} ${one.name}`]), state.stage, (x) => show({ stage: Number(x) }))),
    h("div", { class: "columns" }, stageMap(run, last), stagePanel(run, last)));
}

// [stage, indentation]. Stages are drawn below each other, and indentation shows nesting.
const COLUMN = [[1, 0], [2, 0], [3, 0], [4, 1], [5, 1], [6, 2], [7, 2], [8, 3], [9, 3], [10, 3], [11, 3], [12, 3], [13, 3], [14, 3],
  [15, 2], [16, 2], [17, 2], [18, 2], [19, 1], [20, 1], [21, 1]];
const FRAMES = [[3, 21, 0], [5, 18, 1], [7, 14, 2]]; // first stage, last stage, indentation

function stageMap(run, pass) {
  const seconds = run.passes[pass].seconds;
  const total = seconds.reduce((a, b) => a + b, 0) || 1;
  const row = 30, width = 430;
  const top = (stage) => (stage - 1) * row + 4;
  const frames = FRAMES.map(([first, end, indent]) => s("rect", { x: indent * 16 + 2, y: top(first) - 2, width: width - indent * 26 - 4, height: (end - first + 1) * row, rx: 9, class: "frame" }));
  const boxes = COLUMN.map(([number, indent]) => {
    const stage = page.stages[number - 1];
    const share = seconds[number] / total;
    const choose = () => show({ stage: number });
    return s("g", {
      id: `stage-${number}`, class: number === state.stage ? "stage here" : "stage", tabindex: 0, role: "button", "aria-label": `stage ${number} ${stage.name}`,
      onclick: choose, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } },
    }, s("rect", { x: indent * 16 + 8, y: top(number) + 2, width: 250, height: row - 8, rx: 5, class: "op" }),
      s("text", { x: indent * 16 + 16, y: top(number) + 17 }, `${number}  ${shown(stage.name, 27)}`),
      seconds[number] ? s("rect", { x: 312, y: top(number) + 7, width: Math.max(1, share * 60), height: 11, class: "chosen" }) : null,
      seconds[number] ? s("text", { x: 376, y: top(number) + 17, class: "small" }, `${share < 0.01 ? "<1" : Math.round(100 * share)}\u00a0%`) : null);
  });
  const back = s("path", { d: `M${width - 4} ${top(21) + 14} h2 V${top(4) + 12} h-2`, class: "residual" });
  return h("div", {}, h("p", {}, `Each of the ${run.L} layers runs stages 6 to 18. The drawn token is the input of stage 4 in the next pass. A bar shows a stage's share of the time that pass ${pass} spent in ops, ${duration(total)}.`),
    s("svg", { viewBox: `0 0 ${width} ${21 * row + 8}`, class: "map", role: "group", "aria-label": "the stages of a run" }, frames, back, boxes));
}

const COLUMNS = ["op", "result", "dtype", "time", "bytes", "operations", "share of the limit"];

function stagePanel(run, pass) {
  const stage = page.stages[state.stage - 1];
  const events = run.events.filter((event) => event[0] === pass && event[1] === state.stage && (event[2] === null || event[2] === state.layer));
  const rows = events.map((event) => {
    const [name, shape, , dtype] = run.tensors[event[5][0][0]];
    return [event[3], `${name} [${shape.join(", ")}]`, dtype, duration(event[6]), amount(event[7]), amount(event[8]), shareOfLimit(run, event)];
  });
  return h("section", { class: "panel" },
    h("h3", { id: "stage-heading" }, `Stage ${stage.number}: ${stage.name}${events.some((event) => event[2] !== null) ? `, layer ${state.layer}` : ""}`),
    stage.holds ? h("p", {}, `It consists of stages ${stage.holds}.`) : null,
    spread([events.length ? opGraph(run, events) : h("p", {}, "This stage does not run any op of the tensor library."),
    events.length ? table("The ops of this stage. The limit is the memory bandwidth or the arithmetic rate of this machine, measured with this run", COLUMNS, rows, { id: "ops" }) : null],
    sourceOf(stage, events), h("details", { open: true }, h("summary", {}, `${stage.chapter}`),
      stage.section ? h("p", { class: "missing", id: "section-run" }, "Below is the book's section about this stage. Its shapes, numbers and log lines come from the book's own runs; the values of this run are above.") : null,
      ...markdown(stage.section))));
}

/** Return the op's speed as a percentage of the machine's limit. */
function shareOfLimit(run, event) {
  const { readRate, operationRate } = run.machine;
  if (!event[6] || !event[7]) return "–";
  const byBytes = event[7] / readRate, byOperations = operationRate ? event[8] / operationRate : 0;
  return `${digits((100 * Math.max(byBytes, byOperations)) / event[6], 2)} % of ${byBytes >= byOperations ? "bandwidth" : "arithmetic"}`;
}

/** Draw ops as boxes, connected by lines from results to inputs. */
function opGraph(run, events) {
  const row = 64, width = 620;
  const places = new Map();
  const parts = events.map((event, n) => {
    const y = n * row + 8;
    const inputs = event[4].map(([info, id], i) => {
      const from = places.get(id);
      const [name, , letters, dtype] = run.tensors[info];
      if (from !== undefined) return s("path", { d: `M${350 + 8 * i} ${from + 34} C${350 + 8 * i} ${y - 8} ${350 + 8 * i} ${y - 12} ${350 + 8 * i} ${y}`, class: "arrow" });
      return s("text", { x: 206, y: y + 15 + 13 * i, "text-anchor": "end", class: "small" }, `${shown(name, 26)}${letters.length ? ` [${letters.join(", ")}]` : ""}`, s("title", {}, `${name} ${dtype}`));
    });
    event[5].forEach(([, id]) => places.set(id, y));
    const [name, shape, letters] = run.tensors[event[5][0][0]];
    const scalars = Object.entries(event[10]).map(([key, value]) => `${key} = ${typeof value === "number" ? digits(value, 6) : value}`).join(", ");
    return s("g", {}, inputs, s("rect", { x: 214, y, width: 170, height: 34, rx: 6, class: "op" }),
      s("text", { x: 299, y: y + 21, "text-anchor": "middle" }, event[3]),
      s("text", { x: 394, y: y + 14 }, `${name} [${letters.join(", ")}]`), s("text", { x: 394, y: y + 29, class: "small" }, `= [${shape.join(", ")}]`),
      s("text", { x: 214, y: y + 46, class: "small" }, shown(scalars, 60)));
  });
  return picture(width, events.length * row + 6, "the ops of this stage", parts);
}

function sourceOf(stage, events) {
  const file = stage.code.split(":")[0];
  const source = page.sources[`${file} ${stage.function}`];
  if (!source) return h("p", {}, `Code: ${stage.code}`);
  const lines = new Set([stage.code, ...events.map((event) => event[9])].filter((place) => place.startsWith(`${file}:`)).map((place) => Number(place.split(":")[1])));
  return h("details", { open: true }, h("summary", {}, `${stage.code} ${stage.function}; the lines that ran are marked ▸`),
    h("pre", { class: "code", tabindex: 0 }, source.text.split("\n").map((line, i) => {
      const number = source.line + i;
      return h("span", { class: lines.has(number) ? "line ran" : "line" }, `${lines.has(number) ? "▸" : " "}${String(number).padStart(4)}  ${line}`);
    })));
}

/** Convert a section of the docs to elements. Only the Markdown that the docs use is supported. */
function markdown(text) {
  const found = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    if (/^(```|~~~)/.test(line)) {
      const body = [];
      while (++i < lines.length && !/^(```|~~~)/.test(lines[i])) body.push(lines[i]);
      found.push(h("pre", { tabindex: 0 }, body.join("\n")));
    } else if (/^#{2,6} /.test(line)) found.push(h("h4", {}, ...inline(line.replace(/^#+ /, ""))));
    else if (/^\|/.test(line)) {
      const rows = [];
      for (; i < lines.length && /^\|/.test(lines[i]); i++) rows.push(lines[i].slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim()));
      i--;
      const body = rows.filter((row) => !row.every((cell) => /^:?-+:?$/.test(cell)));
      found.push(h("div", { class: "scroll" }, h("table", {}, body.map((row) => h("tr", {}, row.map((cell) => h("td", {}, ...inline(cell))))))));
    } else if (/^[-*] |^\d+\. /.test(line)) {
      const items = [];
      for (; i < lines.length && lines[i].trim(); i++) {
        if (/^[-*] |^\d+\. /.test(lines[i])) items.push(lines[i].replace(/^[-*] |^\d+\. /, ""));
        else items[items.length - 1] += ` ${lines[i].trim()}`;
      }
      found.push(h("ul", {}, items.map((item) => h("li", {}, ...inline(item)))));
    } else if (line.trim() && !/^!\[/.test(line)) {
      const body = [line];
      while (lines[i + 1]?.trim() && !/^(```|~~~|\||#|!\[|[-*] )/.test(lines[i + 1])) body.push(lines[++i]);
      found.push(h("p", {}, ...inline(body.join(" "))));
    }
  }
  return found;
}

/** Convert inline Markdown: code, emphasis and links. Only the text of a link is kept. */
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*]+\*|\[[^\]]+\]\((?:[^()]|\([^()]*\))*\))/).map((part) => {
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return h("strong", {}, part.slice(2, -2));
    if (/^\*.+\*$/.test(part)) return h("em", {}, part.slice(1, -1));
    const link = /^\[(.+)\]\(/.exec(part);
    return link ? h("span", {}, ...inline(link[1])) : part.replace(/\\\|/g, "|");
  });
}
