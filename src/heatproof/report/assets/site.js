// Tabs, sorting, filters, tooltips and links. Without this script a page shows everything, one part below the other.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  document.documentElement.classList.add("scripted");

  // Data that stand in the page, or in a script beside it that calls heatproofData.
  const arrived = new Map();
  const waiting = new Map();
  window.heatproofData = (name, value) => { arrived.set(name, value); };
  const load = (name) => {
    const block = document.querySelector(`script[data-name="${CSS.escape(name)}"]`);
    if (block && !arrived.has(name)) arrived.set(name, JSON.parse(block.textContent));
    if (arrived.has(name)) return Promise.resolve(arrived.get(name));
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = make("script", { src: `${name}.js` });
        script.addEventListener("load", () => { script.remove(); resolve(arrived.get(name)); });
        script.addEventListener("error", () => { script.remove(); waiting.delete(name); reject(new Error(`${name} could not be read`)); });
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  };
  window.heatproof = { all, make, load };

  // What is far down a large page is read when it comes near the window, is asked for, or is printed.
  const deferred = (root = document) => all("[data-deferred]", root);
  const fill = async (place) => {
    const name = place.dataset.deferred;
    if (!name || place.dataset.state) return;
    place.dataset.state = "loading";
    try {
      const content = await load(name);
      delete place.dataset.deferred;
      if (place.tagName === "TBODY") {
        const rows = make("template", { innerHTML: `<table><tbody>${content}</tbody></table>` }).content;
        delete place.dataset.rows;
        place.replaceChildren(...rows.querySelectorAll("tr"));
        place.closest("section")?.dispatchEvent(new CustomEvent("rows"));
      } else place.innerHTML = content;
    } catch { delete place.dataset.state; }
  };
  const fillAll = (root) => deferred(root).reduce((before, place) => before.then(() => fill(place)), Promise.resolve());
  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => { near.unobserve(entry.target); fill(entry.target); });
  }, { rootMargin: "800px" });
  deferred().forEach((place) => near.observe(place));
  addEventListener("beforeprint", () => fillAll());

  // Tabs: the children of [data-tabs] that have data-tab. Groups of the same name change together.
  let panelCount = 0;
  const groups = all("[data-tabs]").map((root) => {
    const panels = [...root.children].filter((child) => child.dataset.tab !== undefined);
    const strip = make("div", { className: "tabs", role: "tablist", ariaLabel: root.dataset.tabs });
    const group = { name: root.dataset.tabs, panels, strip };
    if (panels.length < 2) return group;
    panels.forEach((panel, i) => {
      panel.id ||= `panel-${++panelCount}`;
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-label", panel.dataset.tab);
      const button = make("button", { type: "button", role: "tab", textContent: panel.dataset.tab });
      button.setAttribute("aria-controls", panel.id);
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
    if (panels.length > 6) strip.classList.add("many");
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

  // Tables are sorted by data-value, or else by text; rows without a value come last.
  all("table.sortable").forEach((table) => {
    all("thead th", table).forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", head.dataset.sorted || "none");
      button.addEventListener("click", async () => {
        await fillAll(table);
        const before = head.getAttribute("aria-sort");
        const up = before === "none" ? head.dataset.first !== "descending" : before === "descending";
        all("thead th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
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

  // Filters hide the rows and figures of their section whose data do not match. What has no such data stays.
  all("form[data-filter]").forEach((form) => {
    const root = form.closest("section");
    const count = form.querySelector("output");
    const apply = () => {
      const wanted = all("select", form).filter((field) => field.value !== "");
      const text = form.querySelector("input[type=search]")?.value.trim().toLowerCase() ?? "";
      all("[data-filtered]", root).forEach((element) => {
        const misses = wanted.some((field) => element.dataset[field.name] !== undefined && element.dataset[field.name] !== field.value);
        const named = element.dataset.search?.toLowerCase();
        element.hidden = misses || (named !== undefined && !named.includes(text));
      });
      const rows = all("tbody tr[data-filtered]", root);
      const unread = all("tbody[data-rows]", root).reduce((sum, place) => sum + Number(place.dataset.rows), 0);
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length + unread} rows`;
    };
    root.addEventListener("rows", apply);
    form.addEventListener("input", () => { apply(); all("table", root).forEach((table) => fillAll(table)); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    form.hidden = false;
    apply();
  });

  // Hover shows the numbers of a mark, and highlights the same method everywhere, or the same patch within an example.
  // A name that has the focus highlights its method as well, and a click on it keeps the highlight.
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  let lit = [];
  let pinned = "";
  const ofMethod = (method) => all(`[data-method="${CSS.escape(method)}"]`);
  const light = (elements) => {
    lit.forEach((element) => element.classList.remove("lit"));
    const kept = document.activeElement?.closest("button.pin")?.dataset.method ?? pinned;
    lit = elements.length || !kept ? elements : ofMethod(kept);
    lit.forEach((element) => element.classList.add("lit"));
  };
  const twins = (target) => {
    const patch = target.closest?.("[data-twin]");
    if (patch?.closest(".worked")) return all(`[data-twin="${CSS.escape(patch.dataset.twin)}"]`, patch.closest(".worked"));
    const method = target.closest?.("[data-method]")?.dataset.method;
    return method ? ofMethod(method) : [];
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
  document.addEventListener("focusin", (event) => light(twins(event.target)));
  document.addEventListener("click", (event) => {
    const name = event.target.closest?.("button.pin");
    if (!name) return;
    pinned = pinned === name.dataset.method ? "" : name.dataset.method;
    all("button.pin").forEach((button) => { button.ariaPressed = String(button.dataset.method === pinned); });
    light(pinned ? ofMethod(pinned) : []);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !pinned) return;
    pinned = "";
    all("button.pin").forEach((button) => { button.ariaPressed = "false"; });
    light([]);
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // What is wider than its frame can be scrolled with the keyboard.
  const scrollable = () => all(".sheet, .scroll, pre").forEach((frame) => {
    if (frame.scrollWidth > frame.clientWidth + 1 || frame.scrollHeight > frame.clientHeight + 1) {
      frame.tabIndex = 0;
      if (!frame.hasAttribute("role")) { frame.setAttribute("role", "group"); frame.ariaLabel = "can be scrolled"; }
    }
  });
  scrollable();
  window.heatproof.scrollable = scrollable;
  addEventListener("resize", scrollable);
  document.addEventListener("click", () => setTimeout(scrollable));

  // Every figure can be saved as PNG, drawn here in the colours of paper, and printed alone, to a PDF.
  const paperStyle = "chart style";
  const scale = 3;
  const savePng = async (svg, name) => {
    const copy = svg.cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    copy.setAttribute("width", width * scale);
    copy.setAttribute("height", height * scale);
    const style = document.createElementNS(svg.namespaceURI, "style");
    style.textContent = paperStyle;
    copy.prepend(style);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    await image.decode();
    const canvas = make("canvas", { width: width * scale, height: height * scale });
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0);
    const link = make("a", { href: canvas.toDataURL("image/png"), download: name });
    link.click();
  };
  const printAlone = (figure) => {
    const root = document.documentElement;
    const end = () => { figure.classList.remove("printed"); root.classList.remove("print-one"); };
    figure.classList.add("printed");
    root.classList.add("print-one");
    addEventListener("afterprint", end, { once: true });
    print();
  };
  all("figure .exports").forEach((place) => {
    const figure = place.closest("figure");
    const svg = figure.querySelector("svg.chart");
    if (!svg) return;
    const title = figure.querySelector("figcaption b")?.textContent ?? "figure";
    const button = (text, label, action) => {
      const made = make("button", { type: "button", textContent: text, title: label, ariaLabel: `${text}: ${title}` });
      made.addEventListener("click", action);
      return made;
    };
    const file = place.querySelector("a").getAttribute("href");
    const name = file.startsWith("data:") ? "figure" : file.split("/").pop().replace(/\.svg$/, "");
    place.querySelector("a").after(
      button("PDF", "prints this figure alone; choose to save it as PDF", () => printAlone(figure)),
      button("PNG", `saves a picture of ${scale} × the size`, () => savePng(svg, `${name}.png`)),
    );
  });

  // Buttons that copy a text.
  all("button[data-copies]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copies);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "selected: copy it with your keyboard";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2500);
    });
  });

  // A report in one file shows one page at a time.
  const single = document.querySelector("[data-single]");
  if (single) {
    const parts = all(".part", single);
    const links = all("nav a");
    const turn = () => {
      const id = location.hash.slice(1);
      const target = id && !id.includes("=") ? document.getElementById(id) : null;
      const explorer = id.startsWith("sample=") ? document.getElementById("explorer") : null;
      const part = (target ?? explorer)?.closest(".part") ?? parts[0];
      parts.forEach((other) => { other.hidden = other !== part; });
      links.forEach((link) => {
        if (link.hash === `#${part.id}`) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      });
      if (target && target !== part) target.scrollIntoView();
      else if (!explorer) scrollTo(0, 0);
      scrollable();
    };
    addEventListener("hashchange", turn);
    turn();
  }

  // The current page stands in sight on a narrow screen.
  const current = document.querySelector("nav a[aria-current]");
  if (current) current.closest("ol").scrollLeft = current.offsetLeft - current.closest("ol").offsetLeft - 24;

  // A report that is served says when there is a newer one, and reloads a page that nobody has touched.
  const live = document.querySelector("meta[name=heatproof-live]");
  if (live) {
    const status = document.querySelector(".live");
    let version = null;
    let touched = false;
    const touch = () => { touched = true; };
    ["pointerdown", "keydown", "wheel"].forEach((kind) => addEventListener(kind, touch, { passive: true, once: true }));
    const ask = async () => {
      try {
        const answer = await (await fetch(live.content, { cache: "no-store" })).json();
        version ??= answer.version;
        status.hidden = false;
        if (version === answer.version) status.textContent = answer.text;
        else if (!touched) location.reload();
        else {
          const button = make("button", { type: "button", className: "tool", textContent: "new results: reload" });
          button.addEventListener("click", () => location.reload());
          if (!status.querySelector("button")) status.replaceChildren(button);
        }
      } catch {
        status.hidden = false;
        status.textContent = "the server has stopped";
      }
    };
    ask();
    setInterval(ask, 2000);
  }
})();
