// The frame of the page: the token strip, the view tabs and the keyboard controls.

const VIEWS = [["tokens", "Tokens", tokensView], ["map", "Map", mapView], ["attention", "Attention", attentionView], ["residual", "Residual stream", residualView],
  ["sampling", "Sampling", samplingView], ["cache", "Cache", cacheView], ["values", "Values", valuesView], ["compare", "Compare", compareView], ["tour", "Tour", tourView]];

async function tokensView(root) {
  const run = currentRun();
  const first = run.prompt.messages?.map((m) => `${m.role}: ${shown(m.content, 400)}`).join("\n") ?? (run.prompt.text ? shown(run.prompt.text, 400) : null);
  root.append(h("p", {}, "Each token is a piece of text with an id. The token that is selected in the strip above is marked in the table below, and every view shows the run at its position. ", chosenToken(run),
    h("button", { id: "take-tour", type: "button", onclick: () => show({ view: "tour" }) }, "take a tour in ten steps")), ...(first ? [h("h3", {}, "The prompt"), h("pre", {}, h("bdi", {}, first))] : []),
    broad(table("All tokens, and the probability of each drawn token before any filter", ["position", "id", "text", "kind", "probability", "random number"], run.tokens.map((id, i) => {
      const one = run.drawnFrom.get(i);
      const found = one?.choice.candidates.find((x) => x.token_id === id);
      const kind = run.texts[id]?.[1] ? "special" : "text";
      return h("tr", { class: i === state.position ? "here" : "" }, h("td", {}, String(i)), h("td", {}, String(id)), h("td", {}, token(run, id, 200)), h("td", {}, `${kind}, ${one ? "drawn" : "prompt"}`),
        h("td", {}, found ? percent(found.probabilities[0]) : ""), h("td", {}, one ? (one.random === null ? "none" : String(one.random)) : ""));
    }), { id: "all-tokens" }),
    table("The run", ["property", "value"], [["model", shown(run.model, 600)], ["sizes", Object.entries(run.sizes).map(([k, v]) => `${k} = ${amount(v)}`).join(", ")], ["weights", run.weights],
      ["machine", `${run.machine["instruction set"]}, ${run.machine.threads} threads, Python ${run.machine.python}; ${digits(run.machine.readRate / 1e9, 3)} GB/s from memory, ${run.machine.operationRate ? digits(run.machine.operationRate / 1e9, 3) : "unknown"} GFLOPS`],
      ["attention", "one op per stage, with the same bits as the fused op"], ["draft tokens", "none"], ["written by", page.program]])));
}

/** Explain where the selected token comes from and how probable it was. */
function chosenToken(run) {
  const id = run.tokens[state.position];
  const one = run.drawnFrom.get(state.position);
  if (!one) return h("span", {}, token(run, id), " is a token of the prompt. ");
  return h("span", {}, token(run, id), " was drawn. ", chance(run, one));
}

/** Describe the probability of the token that a pass sampled. */
function chance(run, one) {
  const found = run.chanceOf(one);
  return found === null ? "" : h("span", {}, "Its probability before any filter was ", h("strong", { id: "chosen-probability" }, percent(found)), ". ");
}

/** Mark elements that scroll horizontally, because a touch screen shows no scroll bar. */
function markWide() {
  for (const one of document.querySelectorAll("#view .scroll")) one.classList.toggle("wide", one.scrollWidth > one.clientWidth + 1);
}

/** Scroll the selected row or cell into its table or matrix, and also into the window if asked. */
function reveal(panel, inWindow) {
  const find = (root) => root.querySelector(".here, .place");
  for (const box of panel.querySelectorAll(".scroll")) {
    const place = find(box);
    if (!place) continue;
    const [outer, inner] = [box.getBoundingClientRect(), place.getBoundingClientRect()];
    const isBeside = inner.left < outer.left || inner.right > outer.right;
    if (isBeside && inner.width <= outer.width) box.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
    if (inner.top < outer.top || inner.bottom > outer.bottom) box.scrollTop += inner.top - outer.top - (outer.height - inner.height) / 2;
  }
  if (inWindow) find(panel)?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Views that scroll the window to the row of a token that is selected in the strip.
const SCROLLING = ["tokens", "attention", "values"];

/** Change the selection, and update the page. A link also scrolls the window to the selected row. */
async function show(changes, isLink = false) {
  const before = [state.view, state.position, state.key, state.run].join();
  if (changes.position !== undefined && changes.position !== state.position && changes.key === undefined) state.key = null;
  Object.assign(state, changes);
  const run = currentRun();
  state.position = Math.max(0, Math.min(state.position, run.tokens.length - 1));
  state.layer = Math.min(state.layer, run.L - 1);
  state.head = Math.min(state.head, run.H - 1);
  const turn = (show.turn = (show.turn ?? 0) + 1);
  const start = performance.now();
  const root = document.createElement("div");
  await VIEWS.find(([name]) => name === state.view)[2](root);
  if (turn !== show.turn) return; // a newer call has changed the selection in the meantime
  const focused = document.activeElement?.id;
  const panel = document.getElementById("view");
  const places = [...panel.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  const isSame = panel.dataset.view === state.view;
  panel.replaceChildren(...root.childNodes);
  panel.dataset.view = state.view;
  markWide();
  panel.setAttribute("aria-labelledby", `tab-${state.view}`);
  if (isSame) panel.querySelectorAll(".scroll").forEach((one, n) => places[n]?.some(Boolean) && one.scrollTo(...places[n]));
  const isMoved = before !== [state.view, state.position, state.key, state.run].join();
  if (isMoved || isLink) reveal(panel, isLink || (isSame && SCROLLING.includes(state.view)));
  for (const [name] of VIEWS) {
    const tab = document.getElementById(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === state.view));
    tab.tabIndex = name === state.view ? 0 : -1;
  }
  markStrip(run);
  if (focused && focused !== document.activeElement?.id) document.getElementById(focused)?.focus({ preventScroll: true });
  panel.dataset.milliseconds = String(performance.now() - start);
}

let marked = null;

function markStrip(run) {
  const strip = document.getElementById("strip");
  if (strip.dataset.run !== String(state.run)) fillStrip(strip, run);
  marked?.setAttribute("aria-selected", "false");
  marked?.setAttribute("tabindex", -1);
  marked = document.getElementById(`token-${state.position}`);
  marked.setAttribute("aria-selected", "true");
  marked.setAttribute("tabindex", 0);
  // Scroll only the strip, and keep the page at its current position.
  strip.scrollLeft = marked.offsetLeft - strip.offsetLeft - strip.clientWidth / 2 + marked.offsetWidth / 2;
}

function fillStrip(strip, run) {
  strip.dataset.run = String(state.run);
  strip.replaceChildren(...run.tokens.map((id, i) => h("button", {
    id: `token-${i}`, type: "button", role: "option", "aria-selected": "false", tabindex: -1, title: `position ${i}, id ${id}`,
    class: `${run.texts[id]?.[1] ? "special " : ""}${i >= run.promptLength ? "answer" : ""}`, onclick: () => show({ position: i }),
  }, h("bdi", {}, shown(run.text(id), 24) || " "), h("small", {}, String(id)))));
}

/**
 * Return the changes that the fragment of the address asks for, such as
 * #stage=13&layer=0&head=2&token=26. Unknown names and values are left out.
 */
function linkedState() {
  const run = currentRun();
  const asked = new URLSearchParams(location.hash.slice(1));
  const number = (name, first, end) => {
    const text = asked.get(name) ?? "";
    return /^\d{1,9}$/.test(text) && Number(text) >= first && Number(text) < end ? Number(text) : undefined;
  };
  const stage = number("stage", 1, page.stages.length + 1), head = number("head", 0, run.H), position = number("token", 0, run.tokens.length);
  const named = VIEWS.find(([name]) => name === asked.get("view"))?.[0];
  const view = named ?? (head !== undefined ? "attention" : stage !== undefined ? "map" : undefined);
  const changes = { stage, layer: number("layer", 0, run.L), head, position, view };
  return Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
}

/** Show what the fragment of the address asks for. */
async function follow() {
  const changes = linkedState();
  if (changes.position !== undefined) map.pass = currentRun().passOf(changes.position).number;
  if (changes.stage !== undefined) chooseValues(currentRun(), { ...state, ...changes });
  await show(changes, true);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inField = event.target.closest("input, select, textarea");
  const tabs = event.target.closest("[role=tablist]");
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (tabs && step) {
    const at = VIEWS.findIndex(([name]) => name === state.view);
    const [name] = VIEWS[(at + step + VIEWS.length) % VIEWS.length];
    show({ view: name }).then(() => document.getElementById(`tab-${name}`).focus());
    event.preventDefault();
  } else if (!inField && step && !event.target.closest("canvas, .scroll, pre")) {
    const wasOnToken = event.target.closest("#strip");
    show({ position: state.position + step }).then(() => wasOnToken && document.getElementById(`token-${state.position}`).focus());
    event.preventDefault();
  } else if (!inField && event.key >= "1" && event.key <= String(VIEWS.length)) show({ view: VIEWS[event.key - 1][0] });
}

async function start() {
  page = JSON.parse(new TextDecoder().decode(await inflate("document")));
  page.runs = page.runs.map((record) => new Run(record));
  if (page.runs.some((one) => one.sizes.E)) VIEWS.push(["experts", "Experts", expertsView]);
  const run = page.runs[0];
  state.position = run.deciding;
  const left = page.runs.flatMap((one, n) => one.leftOut.map((line) => (page.runs.length > 1 ? `run ${n + 1}, ${line}` : line)));
  document.getElementById("page").replaceChildren(
    h("header", {}, h("h1", {}, "Inside a run"), h("p", { class: "names" }, shown(run.name, 120), " · ", page.program),
      page.runs.length > 1 ? choice("run", "run", page.runs.map((one, n) => [n, `${n + 1}: ${shown(one.name, 60)}`]), 0, (n) => show({ run: Number(n) })) : null,
      h("details", { id: "left-out" }, h("summary", {}, left.length ? `What was left out (limit ${page.limit} MB)` : `Nothing was left out (limit ${page.limit} MB)`), h("ul", {}, left.map((line) => h("li", {}, line))))),
    h("div", { id: "strip", role: "listbox", "aria-label": "tokens of the prompt and the answer; arrow keys move the selection", "aria-orientation": "horizontal" }),
    h("nav", { role: "tablist", "aria-label": "views" }, VIEWS.map(([name, title], n) => h("button", { id: `tab-${name}`, type: "button", role: "tab", "aria-controls": "view", "aria-keyshortcuts": n + 1, onclick: () => show({ view: name }) }, title))),
    h("div", { id: "view", role: "tabpanel" }),
    h("footer", {}, "Keys: ← and → select a token, 1 to 9 select a view, Tab moves to the next control."));
  document.addEventListener("keydown", keys);
  window.addEventListener("resize", markWide);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show({}));
  window.addEventListener("hashchange", follow);
  await follow();
  // Make the state, the runs and the sampler available in the console.
  globalThis.explorer = { state, runs: page.runs, show, arrayOf, distribution, logitsOf, stagesOf, placeOf, compareRuns };
  document.documentElement.dataset.ready = "yes";
}
