// Tabs, sorting, tooltips and the enlarged view. Without this script the page shows everything, one part below the other.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  document.documentElement.classList.add("scripted");

  // Tabs: the children of [data-tabs] that have data-tab. Groups of the same name change together.
  const groups = all("[data-tabs]").map((root) => {
    const panels = [...root.children].filter((child) => child.dataset.tab !== undefined);
    const strip = make("div", { className: "tabs", role: "tablist", ariaLabel: root.dataset.tabs });
    const group = { name: root.dataset.tabs, panels, strip };
    if (panels.length < 2) return group;
    panels.forEach((panel, i) => {
      const button = make("button", { type: "button", role: "tab", textContent: panel.dataset.tab });
      button.addEventListener("click", () => groups.filter((g) => g.name === group.name).forEach((g) => show(g, panel.dataset.tab)));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = strip.children[(i + step + panels.length) % panels.length];
        next.focus();
        next.click();
      });
      strip.append(button);
    });
    panels[0].before(strip);
    return group;
  });
  function show(group, label) {
    if (group.panels.length < 2 || !group.panels.some((panel) => panel.dataset.tab === label)) return;
    group.panels.forEach((panel, i) => {
      const chosen = panel.dataset.tab === label;
      panel.hidden = !chosen;
      group.strip.children[i].ariaSelected = String(chosen);
      group.strip.children[i].tabIndex = chosen ? 0 : -1;
    });
  }
  groups.forEach((group) => group.panels.length && show(group, group.panels[0].dataset.tab));

  // The setting whose scores and drops the gallery shows, and the network that was evaluated under it.
  let setting = "0";
  all("[data-chooser]").forEach((strip) => {
    const choose = (value) => {
      setting = value;
      all("[data-setting]").forEach((element) => { element.hidden = element.dataset.setting !== value; });
      all("[data-settings]").forEach((view) => { view.hidden = !view.dataset.settings.split(" ").includes(value); });
      all("button", strip).forEach((button) => { button.ariaPressed = String(button.value === value); });
    };
    all("button", strip).forEach((button) => button.addEventListener("click", () => choose(button.value)));
    strip.hidden = false;
    choose("0");
  });

  // Tables are sorted by data-value, or else by text; rows without a value come last.
  all("table.sortable").forEach((table) => {
    all("thead th", table).forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", head.dataset.sorted || "none");
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const up = before === "none" ? head.dataset.first !== "descending" : before === "descending";
        all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const rows = [...table.tBodies[0].rows];
        const text = rows.some((row) => key(row) !== "" && Number.isNaN(Number(key(row))));
        rows.sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          return (up ? 1 : -1) * (text ? x.localeCompare(y) : Number(x) - Number(y));
        });
        table.tBodies[0].append(...rows);
      });
    });
  });

  // Hover shows the numbers of a mark, and highlights the same method everywhere, or the same patch within an example.
  const tip = make("div", { className: "tip", hidden: true });
  document.body.append(tip);
  let lit = [];
  const light = (elements) => {
    lit.forEach((element) => element.classList.remove("lit"));
    lit = elements;
    lit.forEach((element) => element.classList.add("lit"));
  };
  const twins = (target) => {
    const patch = target.closest?.("[data-twin]");
    if (patch?.closest(".worked")) return all(`[data-twin="${CSS.escape(patch.dataset.twin)}"]`, patch.closest(".worked"));
    const method = target.closest?.("[data-method]")?.dataset.method;
    return method ? all(`[data-method="${CSS.escape(method)}"]`) : [];
  };
  document.addEventListener("pointermove", (event) => {
    const hovered = event.target.closest?.("[data-tip]");
    tip.hidden = !hovered;
    if (!hovered) return;
    tip.textContent = hovered.dataset.tip;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  });
  document.addEventListener("pointerover", (event) => light(twins(event.target)));
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // The enlarged view of a map, with the ranks that its score is computed from.
  const viewer = document.getElementById("viewer");
  let tiles = [];
  let current = 0;
  const ranks = (values) => values.map((v) => values.filter((w) => w < v).length + (values.filter((w) => w === v).length + 1) / 2);
  const picture = (source, caption) => make("div", {}, make("img", { src: source, alt: "" }), caption);
  function scatter(sums, drops) {
    const draw = (name, attributes, text = "") => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
      element.textContent = text;
      return element;
    };
    const at = (rank) => 22 + ((rank - 1) / Math.max(1, sums.length - 1)) * 164;
    const plot = draw("svg", { viewBox: "0 0 208 208", class: "scatter", role: "img", "aria-label": "Rank of each patch in the map against its rank in the true drops" });
    plot.append(draw("line", { x1: at(1), y1: 208 - at(1), x2: at(sums.length), y2: 208 - at(sums.length) }));
    const across = ranks(sums);
    ranks(drops).forEach((rank, i) => plot.append(draw("circle", { cx: at(across[i]), cy: 208 - at(rank), r: sums.length > 30 ? 2.5 : 4.5 })));
    plot.append(draw("text", { x: 200, y: 202, "text-anchor": "end" }, "map →"), draw("text", { x: 8, y: 16 }, "↑ true drop"));
    return plot;
  }
  function enlarge() {
    const tile = tiles[current];
    const sample = tile.closest(".sample");
    const body = viewer.querySelector(".large");
    viewer.querySelector("h3").textContent = tile.dataset.method;
    viewer.querySelector("header p").textContent = `${sample.dataset.id} · score ${tile.querySelector(".score:not([hidden])").textContent.replace(/\s+/g, " ")}`;
    body.replaceChildren(picture(sample.querySelector(".truth img").src, "the image"), picture(tile.querySelector(".map").src, "the map, as it is evaluated"));
    body.classList.toggle("crisp", Boolean(tile.closest(".crisp")));
    const drops = sample.querySelector(`.drops[data-setting="${setting}"]`);
    if (!drops) return;
    const values = JSON.parse(drops.dataset.values);
    const sums = JSON.parse(tile.dataset.sums)[values.length];
    body.append(make("div", {}, drops.querySelector("svg").cloneNode(true), "the true drops"));
    if (sums) body.append(make("div", {}, scatter(sums, values), "one dot per patch, by rank: the score is their rank correlation"));
  }
  const step = (by) => { current = (current + by + tiles.length) % tiles.length; enlarge(); };
  all("button.tile:not([disabled])").forEach((tile) => tile.addEventListener("click", () => {
    tiles = all("button.tile:not([disabled])", tile.closest(".sample"));
    current = tiles.indexOf(tile);
    enlarge();
    viewer.showModal();
  }));
  viewer.addEventListener("click", (event) => {
    const action = event.target.closest("button")?.value;
    if (action === "close" || event.target === viewer) viewer.close();
    else if (action) step(Number(action));
  });
  viewer.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) step(by);
  });

  // The navigation highlights the current section.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    links.forEach((link, id) => { if (id === entry.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
  }), { rootMargin: "-20% 0px -75% 0px" });
  all(".masthead, main > section").forEach((part) => seen.observe(part));
})();
