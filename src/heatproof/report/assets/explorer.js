// The explorer: one sample at a time. Texts of a run are only ever set as text, never as markup.
(() => {
  "use strict";
  const app = document.getElementById("explorer-app");
  if (!app) return;
  const { all, make, load, scrollable } = window.heatproof;
  const byId = (id) => document.getElementById(`x-${id}`);
  const BEST = 5;
  const MOST_LISTED = 200;
  const LONG = 300; // characters of an id that a link contains
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...children);
    return element;
  };
  const short = (text, most = 80) => ([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);
  const digits = (value, count = 2) => (value === null || value === undefined ? "–" : value.toFixed(count).replace("-", "−"));
  const precise = (value) => Number(value).toPrecision(3).replace("-", "−");
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  let collections = [];
  const state = { collection: 0, setting: 0, sample: 0, methods: [], order: "data", by: -1, search: "" };
  const here = () => collections[state.collection];
  let request = 0;

  // The score that samples are ordered by: of one method, or the mean over all that depend on the model.
  function score(sample) {
    const values = here().scores[sample][state.setting];
    if (state.by >= 0) return values[state.by];
    const scored = values.filter((value, m) => value !== null && !here().controls[m]);
    return scored.length ? mean(scored) : null;
  }
  function ordered() {
    const wanted = state.search.trim().toLowerCase();
    const found = here().samples.map((_, i) => i).filter((i) => {
      const [id, label, predicted] = here().samples[i];
      return [id, label, predicted].some((text) => text.toLowerCase().includes(wanted));
    });
    if (state.order === "data") return found;
    const sign = (state.order === "best") === here().higher[state.setting] ? -1 : 1;
    return found.sort((a, b) => {
      const [x, y] = [score(a), score(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y) || a - b;
    });
  }

  function list() {
    const found = ordered();
    const shown = found.slice(0, MOST_LISTED);
    byId("count").textContent = `${found.length} of ${here().samples.length} samples${found.length > shown.length ? `, the first ${shown.length} listed` : ""}`;
    byId("list").replaceChildren(...shown.map((i) => {
      const [id, label, , , , thumb] = here().samples[i];
      const button = make("button", { type: "button" },
        make("img", { src: thumb, alt: "", loading: "lazy", width: 44, height: 44 }),
        make("span", { className: "id", textContent: short(id), title: short(id, 200) }),
        make("span", { className: "soft", textContent: short(label, 40) }),
        make("span", { className: "value", textContent: digits(score(i)) }));
      if (i === state.sample) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => { state.sample = i; update(); });
      return make("li", {}, button);
    }));
    return found;
  }

  const name = (m) => {
    const label = make("span", { className: `method ${here().families[m]}` });
    label.append(symbol(here().families[m], here().controls[m]), make("code", { textContent: short(here().methods[m], 60) }));
    return label;
  };
  const symbol = (family, hollow) => draw("svg", { class: `chart ${family}`, viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" },
    draw("circle", { class: hollow ? "dot hollow" : "dot", cx: 7, cy: 7, r: 4.4 }));

  function fill(select, options, chosen) {
    select.replaceChildren(...options.map(([value, text]) => make("option", { value: String(value), textContent: short(text, 60) })));
    select.value = String(chosen);
    select.closest("label").hidden = options.length < 2;
  }
  function controls() {
    const { methods, settings } = here();
    fill(byId("collection"), collections.map((c, i) => [i, c.title]), state.collection);
    fill(byId("setting"), settings.map((label, i) => [i, label]), state.setting);
    fill(byId("by"), [[-1, "mean of the methods"], ...methods.map((label, i) => [i, label])], state.by);
    byId("order").value = state.order;
    byId("search").value = state.search;
    byId("methods").replaceChildren(...methods.map((label, m) => {
      const box = make("input", { type: "checkbox", checked: state.methods.includes(m) });
      box.addEventListener("change", () => {
        state.methods = methods.map((_, i) => i).filter((i) => (i === m ? box.checked : state.methods.includes(i)));
        update();
      });
      const chip = make("label", { className: "chip" }, box, name(m));
      chip.dataset.method = label;
      return chip;
    }));
  }

  // Maps are grey pictures, coloured by a filter. On one scale, the values of a map are multiplied by what its end is of the largest end.
  function maps(data) {
    const common = document.querySelector("input[name=x-scale]:checked").value === "common";
    const chosen = state.methods.filter((m) => data.maps[m]);
    const ends = chosen.map((m) => data.maps[m][2]).filter((end) => end !== null);
    const known = ends.length === chosen.length;
    const largest = Math.max(...ends);
    const factor = (m) => (common && known && largest > 0 ? data.maps[m][2] / largest : 1);
    byId("scale-note").textContent = !common
      ? "Each map has its own scale, up to the 99.5th percentile of its absolute values: compare colours within a map, not between maps. Rank scores compare in the same way."
      : known
        ? `One scale for all maps, up to ${precise(largest)}, the largest of their ends: colours compare raw values. Methods have different units, so that some maps may be pale.`
        : "The unit of some maps is not on record, so that each has its own scale.";
    const frame = (...pictures) => {
      const box = make("div", { className: "frame" }, ...pictures);
      box.style.aspectRatio = `${data.size[0]} / ${data.size[1]}`;
      return box;
    };
    const size = { width: data.size[0], height: data.size[1] };
    const photo = make("figure", { className: "map" }, frame(make("img", { src: data.photo, alt: "the image", ...size })), make("figcaption", {}, make("b", { textContent: "the image" })));
    byId("maps").replaceChildren(photo, ...state.methods.map((m) => {
      const value = here().scores[state.sample][state.setting][m];
      const caption = make("figcaption", {}, name(m), make("span", { className: "score" }, make("b", { textContent: value === null ? data.reasons[state.setting][m].split(":")[0] || "–" : digits(value) })));
      if (value === null) caption.title = short(data.reasons[state.setting][m], 400);
      const tile = make("figure", { className: "map" });
      tile.dataset.method = here().methods[m];
      if (!data.maps[m]) tile.append(make("div", { className: "frame empty", textContent: "no map" }), caption);
      else {
        const [file, signed, end] = data.maps[m];
        const map = make("img", { src: file, alt: `map of ${here().methods[m]}`.slice(0, 200), className: "heat", ...size });
        const k = factor(m);
        map.style.filter = `${signed ? `contrast(${k})` : `brightness(${k})`} url(#${signed ? "signed" : "unsigned"})`;
        if (end !== null) caption.append(make("span", { className: "soft end", textContent: `${signed ? "±" : "0 to "}${precise(common && known ? largest : end)}` }));
        tile.append(frame(make("img", { src: data.photo, alt: "", className: "under" }), map), caption);
      }
      return tile;
    }));
    app.classList.toggle("crisp", here().crisp);
  }

  const ranks = (values) => values.map((v) => values.filter((w) => w < v).length + (values.filter((w) => w === v).length + 1) / 2);
  // The drops of patches, and the ranks that the scores are computed from.
  function drops(data) {
    const values = data.drops[state.setting];
    const box = byId("drops");
    if (!values || values.some((value) => value === null)) return box.replaceChildren();
    const side = Math.sqrt(values.length);
    const largest = Math.max(...values.map(Math.abs)) || 1;
    const grid = draw("svg", { class: "chart patches", viewBox: `0 0 ${side * 44} ${side * 44}`, role: "img", "aria-label": "How far the target's score drops when one patch is removed" },
      ...values.flatMap((value, i) => {
        const [x, y] = [(i % side) * 44, Math.floor(i / side) * 44];
        const cell = draw("rect", { class: value < 0 ? "patch minus" : "patch plus", x, y, width: 44, height: 44, "data-tip": `patch ${Math.floor(i / side) + 1}, ${(i % side) + 1}: drop ${precise(value)}`, "data-twin": `patch ${i}` });
        cell.style.fillOpacity = Math.abs(value) / largest;
        return side > 8 || largest < 0.02 ? [cell] : [cell, draw("text", { class: `in-patch${Math.abs(value) / largest > 0.72 ? " on-dark" : ""}`, x: x + 22, y: y + 26, "text-anchor": "middle" }, digits(value, largest < 0.2 ? 2 : 1))];
      }));
    const column = data.counts.indexOf(values.length);
    const dots = (m) => {
      const across = ranks(data.sums[m][column]);
      const at = (rank) => 20 + ((rank - 1) / Math.max(1, values.length - 1)) * 168;
      return draw("svg", { class: "chart ranks", viewBox: "0 0 208 208", role: "img", "aria-label": "Rank of each patch in the map against its rank in the true drops" },
        draw("line", { class: "random", x1: at(1), y1: 208 - at(1), x2: at(values.length), y2: 208 - at(values.length) }),
        ...ranks(values).map((rank, i) => draw("circle", { class: "patch-dot", cx: at(across[i]), cy: 208 - at(rank), r: values.length > 30 ? 2.5 : 4.5, "data-tip": `patch ${Math.floor(i / side) + 1}, ${(i % side) + 1}: rank ${across[i]} by the map, ${rank} by its drop`, "data-twin": `patch ${i}` })),
        draw("text", { class: "tick", x: 200, y: 203, "text-anchor": "end" }, "map →"), draw("text", { class: "tick", x: 8, y: 14 }, "↑ true drop"));
    };
    const shown = state.methods.filter((m) => data.sums[m]);
    box.replaceChildren(
      make("h4", { textContent: `True drops, ${here().settings[state.setting]}` }),
      make("p", { className: "small soft", textContent: "How far the target's score falls when one patch is removed. A score compares the order of the patches: one dot per patch, by its rank in the map and in the true drops." }),
      make("div", { className: "maps worked-maps" }, make("figure", { className: "map" }, grid, make("figcaption", { textContent: "true drops" })),
        ...shown.map((m) => make("figure", { className: "map" }, dots(m), make("figcaption", {}, name(m), make("span", { className: "score" }, make("b", { textContent: digits(here().scores[state.sample][state.setting][m]) })))))));
  }

  // The curves of all chosen methods on one axis.
  function ticks(low, high) {
    const power = 10 ** Math.floor(Math.log10(high - low || 1));
    const step = [0.1, 0.2, 0.5, 1, 2].map((factor) => factor * power).find((s) => (high - low) / s <= 6) ?? power;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i += 1) found.push([i * step, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))]);
    return found;
  }
  function chart(curve) {
    const lines = state.methods.filter((m) => curve.lines[m]);
    const values = lines.flatMap((m) => curve.lines[m]).filter((value) => value !== null);
    if (!values.length) return null;
    let [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = 0.05 * (high - low) || 0.5;
    [low, high] = [low - margin, high + margin];
    const x = (position) => 46 + position * 250;
    const y = (value) => 190 - ((value - low) / (high - low)) * 168;
    const plot = draw("svg", { class: "chart traces", viewBox: "0 0 318 232", role: "img", "aria-label": `${curve.title}: ${curve.up} by method` },
      draw("text", { class: "tick", x: 2, y: 12 }, `↑ ${curve.up}`), draw("text", { class: "tick", x: 296, y: 226, "text-anchor": "end" }, `${curve.across} →`));
    [0, 0.25, 0.5, 0.75, 1].forEach((position) => plot.append(
      draw("line", { class: "grid", x1: x(position), x2: x(position), y1: 22, y2: 190 }),
      draw("text", { class: "tick", x: x(position), y: 206, "text-anchor": "middle" }, `${100 * position} %`)));
    ticks(low, high).forEach(([value, places]) => plot.append(
      draw("line", { class: "grid", x1: 46, x2: 296, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: 40, y: y(value) + 4, "text-anchor": "end" }, digits(value, places))));
    const used = {};
    lines.forEach((m) => {
      const family = here().families[m];
      used[family] = (used[family] ?? -1) + 1;
      if (!curve.lines[m].some((value) => value !== null)) return;
      const points = curve.x.map((position, k) => [x(position), curve.lines[m][k]]).filter(([, value]) => value !== null).map(([a, value]) => `${a.toFixed(1)} ${y(value).toFixed(1)}`);
      const tip = [here().methods[m], ...curve.x.map((position, k) => `${Math.round(100 * position)} %: ${digits(curve.lines[m][k])}`)].join("\n");
      plot.append(draw("g", { class: `mark ${family}`, "data-method": here().methods[m], "data-tip": short(tip, 600) },
        draw("path", { class: "halo", d: `M${points.join("L")}` }), draw("path", { class: `line thin dash-${used[family] % 4}`, d: `M${points.join("L")}` })));
    });
    return make("figure", {}, make("figcaption", {}, make("b", { textContent: curve.title })), plot);
  }
  function curves(data) {
    const charts = data.curves.map(chart).filter(Boolean);
    if (!charts.length) return byId("curves").replaceChildren();
    const pins = state.methods.map((m) => {
      const pin = make("button", { type: "button", className: "pin" }, name(m));
      pin.dataset.method = here().methods[m];
      pin.ariaPressed = "false";
      return pin;
    });
    byId("curves").replaceChildren(make("h4", { textContent: "Curves of this sample" }), make("div", { className: "pins" }, ...pins), make("div", { className: "traces-row" }, ...charts));
  }

  function scores(data) {
    const head = make("thead", {}, make("tr", {}, make("th", { className: "left", textContent: "method", scope: "col" }), ...here().settings.map((label, i) => make("th", { textContent: `${label} ${here().higher[i] ? "↑" : "↓"}`, scope: "col" }))));
    const body = make("tbody", {}, ...here().methods.map((label, m) => {
      const row = make("tr", {}, make("th", { scope: "row" }, name(m)), ...here().settings.map((_, s) => {
        const value = here().scores[state.sample][s][m];
        return make("td", { textContent: value === null ? data.reasons[s][m].split(":")[0] || "–" : digits(value, 3), className: value === null ? "none" : "", title: value === null ? short(data.reasons[s][m], 400) : "" });
      }));
      row.dataset.method = label;
      return row;
    }));
    byId("scores").replaceChildren(head, body);
  }

  function link() {
    const id = here().samples[state.sample][0];
    const parameters = new URLSearchParams();
    parameters.set("sample", id.length < LONG ? id : `@${state.sample}`);
    if (state.methods.length !== here().methods.length) parameters.set("methods", state.methods.map((m) => here().methods[m]).join("\n").slice(0, 4000));
    if (state.collection) parameters.set("network", String(state.collection));
    if (state.setting) parameters.set("setting", String(state.setting));
    history.replaceState(null, "", `#${parameters}`);
  }
  function follow() {
    if (!location.hash.startsWith("#sample=")) return false;
    const parameters = new URLSearchParams(location.hash.slice(1));
    const within = (value, count) => (Number.isInteger(Number(value)) && Number(value) >= 0 && Number(value) < count ? Number(value) : 0);
    state.collection = within(parameters.get("network"), collections.length);
    reset();
    state.setting = within(parameters.get("setting"), here().settings.length);
    const wanted = parameters.get("sample");
    const found = here().samples.findIndex(([id]) => id === wanted);
    state.sample = found >= 0 ? found : within(wanted.replace(/^@/, ""), here().samples.length);
    const methods = (parameters.get("methods") ?? "").split("\n").map((label) => here().methods.indexOf(label)).filter((m) => m >= 0);
    if (methods.length) state.methods = methods;
    return true;
  }
  // A network begins with the methods that the overview shows, else its best ones and controls.
  function best() {
    if (here().first.length > 1) return here().first;
    const real = here().methods.map((_, m) => m).filter((m) => !here().controls[m]).slice(0, BEST);
    return [...real, ...here().methods.map((_, m) => m).filter((m) => here().controls[m]).slice(0, 2)];
  }
  function reset() {
    Object.assign(state, { setting: 0, sample: 0, by: -1, search: "", order: "data" });
    state.methods = best();
  }

  async function update(changesLink = true) {
    const found = list();
    const number = ++request;
    const [id, label, predicted, confidence, correct] = here().samples[state.sample];
    byId("title").textContent = short(id, 120);
    byId("title").title = short(id, 400);
    let percent = `${Math.round(100 * confidence)} %`;
    if (confidence === null) percent = "an unknown probability";
    else if (confidence < 0.005) percent = "<1 %";
    const facts = { true: `${label}, predicted with ${percent}`, false: `${label}, but predicted as ${predicted} with ${percent}`, null: `predicted as ${predicted} with ${percent}` }[String(correct)];
    byId("facts").textContent = short(facts, 200);
    byId("facts").className = correct === false ? "wrong" : "soft";
    byId("chosen").textContent = `${state.methods.length} of ${here().methods.length} methods`;
    all("input", byId("methods")).forEach((box, m) => { box.checked = state.methods.includes(m); });
    const at = found.indexOf(state.sample);
    byId("previous").disabled = found.length < 2;
    byId("next").disabled = found.length < 2;
    byId("previous").value = String(found[(at - 1 + found.length) % found.length]);
    byId("next").value = String(found[(at + 1) % found.length]);
    if (changesLink) link();
    const data = await load(`explorer/${state.collection}/${String(state.sample).padStart(5, "0")}`);
    if (number !== request) return; // another sample was chosen meanwhile
    maps(data);
    drops(data);
    curves(data);
    scores(data);
    scrollable();
    app.dataset.ready = String(state.sample);
  }

  const refresh = () => { controls(); update(); };
  byId("search").addEventListener("input", (event) => {
    state.search = event.target.value;
    const found = ordered();
    if (found.length && !found.includes(state.sample)) [state.sample] = found;
    update();
  });
  byId("collection").addEventListener("change", (event) => { state.collection = Number(event.target.value); reset(); refresh(); });
  byId("setting").addEventListener("change", (event) => { state.setting = Number(event.target.value); update(); });
  byId("order").addEventListener("change", (event) => { state.order = event.target.value; [state.sample = state.sample] = ordered(); update(); });
  byId("by").addEventListener("change", (event) => { state.by = Number(event.target.value); if (state.order !== "data") [state.sample = state.sample] = ordered(); update(); });
  ["previous", "next"].forEach((id) => byId(id).addEventListener("click", (event) => { state.sample = Number(event.currentTarget.value); update(); }));
  byId("all").addEventListener("click", () => { state.methods = here().methods.map((_, m) => m); update(); });
  byId("none").addEventListener("click", () => { state.methods = []; update(); });
  byId("top").addEventListener("click", () => { state.methods = best(); update(); });
  const opacity = () => app.style.setProperty("--opacity", String(byId("opacity").value / 100));
  byId("opacity").addEventListener("input", opacity);
  all("input[name=x-scale]").forEach((box) => box.addEventListener("change", () => update()));
  app.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.target.closest?.("input, select, textarea, [role=tablist]") || event.altKey || event.ctrlKey || event.metaKey) return;
    const id = { ArrowRight: "next", ArrowLeft: "previous" }[event.key];
    if (id && app.checkVisibility()) byId(id).click();
  });
  addEventListener("hashchange", () => { if (follow()) { controls(); update(false); } });

  load("explorer/index").then((index) => {
    collections = index;
    reset();
    const linked = follow();
    app.hidden = false;
    opacity();
    controls();
    update(linked);
  });
})();
