/* Draws charts when they come into view, in the colours of the theme; sorts tables; copies code.
   Without it all numbers stay readable. A live page replaces sections and dispatches the event
   "report:section"; it puts the data of charts into report.figures first. */
"use strict";
(() => {
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 40rem)");
  const coarse = matchMedia("(pointer: coarse)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NAMES = new Set(("paper card ink faint line accent good bad warn idle lost " +
    "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9").split(" "));
  const report = (window.report = { figures: null, plotly: null, drawn: new Map(), errors: [] });

  /* -- what is packed in the page ----------------------------------------------- */

  async function unpacked(id) {
    const text = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function plotly() {
    report.plotly ??= window.Plotly ? Promise.resolve(window.Plotly) : unpacked("plotly").then((text) => {
      const script = document.createElement("script");
      script.textContent = text;
      document.head.append(script);
      return window.Plotly;
    });
    return report.plotly;
  }

  async function figures() {
    report.figures ??= document.getElementById("figures") ? JSON.parse(await unpacked("figures")) : {};
    return report.figures;
  }
  report.read = figures;

  /* -- colours ------------------------------------------------------------------ */

  function theme() {
    const style = getComputedStyle(root);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  /* Give a copy in which names of colours are colours of the theme. */
  function coloured(value, colour, inside = false) {
    if (typeof value === "string") return inside && NAMES.has(value) ? colour(value) : value;
    if (Array.isArray(value)) return value.map((part) => coloured(part, colour, inside));
    if (value === null || typeof value !== "object") return value;
    const found = {};
    for (const [key, part] of Object.entries(value)) {
      found[key] = coloured(part, colour, /color/i.test(key) || (inside && !/text|name/i.test(key)));
    }
    return found;
  }

  /* -- charts ------------------------------------------------------------------- */

  function layoutOf(given, colour) {
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      colorway: [...Array(10).keys()].map((n) => colour(`c${n}`)),
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink") } },
      modebar: { color: colour("faint"), activecolor: colour("accent"), bgcolor: "rgba(0,0,0,0)" },
      legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 },
      ...given,
    };
    layout.margin = { l: narrow.matches ? 44 : 60, r: 16, t: 36, b: 48, ...given.margin };
    const axes = new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((k) => /^[xy]axis\d*$/.test(k))]);
    for (const axis of axes) {
      layout[axis] = {
        gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"),
        automargin: true, ...layout[axis],
      };
    }
    if (narrow.matches) {
      layout.legend = { entrywidth: 0.48, entrywidthmode: "fraction", maxheight: 300,
        font: { size: 11 }, ...layout.legend };
    }
    if (coarse.matches) layout.dragmode = false;  // fingers scroll the page
    delete layout.updatemenus;
    return layout;
  }

  /* On a phone a long legend takes room of its own; elsewhere it fits above the chart. */
  function legendRoom(data, layout) {
    const names = data.filter((trace) => trace.name && trace.showlegend !== false).length;
    return layout.showlegend === false || names < 5 ? 0 : 20 * Math.ceil((names - 4) / 2);
  }

  function roomOf(chart) {
    chart.dataset.height ??= parseFloat(chart.style.height);
    return Number(chart.dataset.height);
  }

  function config() {
    return { displaylogo: false, responsive: true, displayModeBar: coarse.matches ? false : "hover",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  }

  /* Draw a chart that belongs to no figure of the page. */
  report.drawPlain = async (chart, given) => {
    const Plotly = await plotly();
    const colour = theme();
    const { data, layout } = coloured(given, colour);
    return Plotly.newPlot(chart, data, layoutOf(layout, colour), config());
  };

  /* A click on a point opens the structure or the trial that it stands for. */
  function openOnClick(chart) {
    if (chart.opensOnClick) return;
    chart.opensOnClick = true;
    chart.on("plotly_click", async ({ points }) => {
      for (const point of points) {
        for (const name of [point.customdata, point.text, point.hovertext]) {
          if (typeof name === "string" && (await report.open(name))) return;
        }
      }
    });
  }

  async function draw(figure) {
    const all = await figures();
    const key = figure.dataset.key;
    const given = all[key];
    const chart = figure.querySelector(".chart");
    if (!given || !chart) return;
    try {
      const colour = theme();
      const { data, layout } = coloured(given, colour);
      if (data[0]?.type === "parcoords") {
        window.drawLines(chart, data[0], colour);
        report.drawn.set(key, true);
        return;
      }
      const Plotly = await plotly();
      if (narrow.matches) chart.style.height = `${roomOf(chart) + legendRoom(data, layout)}px`;
      const least = Number.parseFloat(chart.style.getPropertyValue("--least")) || 0;
      const wide = least > chart.clientWidth ? { autosize: false, width: least, height: chart.clientHeight } : {};  // it scrolls
      await Plotly.react(chart, data, { ...layoutOf(layout, colour), ...wide }, config());
      openOnClick(chart);
      choices(figure, chart, layout.updatemenus ?? [], Plotly);
      report.drawn.set(key, given);
    } catch (error) {
      chart.classList.add("failed");
      report.errors.push(`${key}: ${error}`);
      console.error(`chart ${key}: ${error}`);
    }
  }

  /* Menus of a chart as buttons that a keyboard reaches; the choice outlives a new drawing. */
  function choices(figure, chart, menus, Plotly) {
    const place = figure.querySelector(".choices");
    const chosen = (place.dataset.chosen ?? "").split(",").map(Number);
    place.replaceChildren();
    menus.forEach((menu, m) => {
      const options = menu.buttons.filter((button) => button.visible !== false);
      const apply = (n) => {
        chosen[m] = n;
        place.dataset.chosen = chosen.join(",");
        return Plotly[options[n].method ?? "restyle"](chart, ...(options[n].args ?? []));
      };
      const start = chosen[m] || menu.active || 0;
      if (options.length > 4) place.append(select(options, start, apply));
      else buttons(place, options, start, apply);
      if (start) apply(start);
    });
  }

  function select(options, start, apply) {
    const made = document.createElement("select");
    options.forEach((option, n) => made.add(new Option(option.label, n, n === start, n === start)));
    made.addEventListener("change", () => apply(Number(made.value)));
    return made;
  }

  function buttons(place, options, start, apply) {
    const made = options.map((option, n) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = option.label;
      button.setAttribute("aria-pressed", n === start);
      button.addEventListener("click", () => {
        made.forEach((other) => other.setAttribute("aria-pressed", other === button));
        apply(n);
      });
      return button;
    });
    place.append(...made);
  }

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });

  function watch(within) {
    for (const figure of within.querySelectorAll("figure[data-key]")) {
      const drawn = report.drawn.get(figure.dataset.key);
      if (!drawn || drawn !== report.figures?.[figure.dataset.key]) near.observe(figure);
    }
  }

  function redraw() {
    for (const key of report.drawn.keys()) {
      const figure = document.querySelector(`figure[data-key="${CSS.escape(key)}"]`);
      if (figure) draw(figure);
    }
  }

  /* -- themes ------------------------------------------------------------------- */

  function kept(theme) {
    try {
      if (theme) localStorage.setItem("report-theme", theme);
      return localStorage.getItem("report-theme");
    } catch {
      return theme ?? null;  // pages of some browsers have no storage
    }
  }

  const before = kept();
  if (before) root.dataset.theme = before;
  document.getElementById("theme")?.addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
    root.dataset.theme = isDark ? "light" : "dark";
    kept(root.dataset.theme);
    redraw();
  });
  dark.addEventListener("change", redraw);

  /* -- tables, code, contents --------------------------------------------------- */

  function valueOf(row, column) {
    const cell = row.cells[column];
    const data = cell?.querySelector("data");
    return data ? Number(data.value) : (cell?.textContent ?? "").trim();
  }

  function compare(a, b) {
    const empty = (value) => value === "" || value === "\u2013";
    if (empty(a) || empty(b)) return { order: empty(a) - empty(b), last: true };
    if (typeof a === "number" && typeof b === "number") return { order: a - b };
    return { order: String(a).localeCompare(String(b), "en", { numeric: true }) };
  }

  function sort(head) {
    const column = head.cellIndex;
    const table = head.closest("table");
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: valueOf(row, column) }));
    rows.sort((a, b) => {
      const { order, last } = compare(a.value, b.value);
      return last ? order : down ? -order : order;  // empty cells stay at the end
    });
    table.tBodies[0].append(...rows.map(({ row }) => row));
  }

  document.addEventListener("click", (event) => {
    const head = event.target.closest("thead th");
    if (head?.hasAttribute("aria-sort")) sort(head);
    const copy = event.target.closest(".copy");
    if (copy) copyCode(copy);
  });

  async function copyCode(button) {
    const code = button.parentNode.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "copied";
    } catch {  // pages from files may not use the clipboard: select it instead
      getSelection().selectAllChildren(code);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  }

  /* A link to a folded section opens it. */
  function unfold() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target && target.querySelector(":scope > details");
    if (fold) fold.open = true;
  }
  addEventListener("hashchange", unfold);

  /* Tables that are wider than their frame say so. */
  const frames = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 1);
    }
  });

  const contents = document.querySelector("nav details");
  if (contents && matchMedia("(max-width: 64rem)").matches) contents.open = false;
  contents?.addEventListener("click", (event) => {
    if (event.target.closest("a") && matchMedia("(max-width: 64rem)").matches) contents.open = false;
  });
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = document.querySelector(`nav a[href="#${CSS.escape(entry.target.id)}"]`);
      if (entry.isIntersecting) link?.setAttribute("aria-current", "true");
      else link?.removeAttribute("aria-current");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });

  function begin(section) {
    watch(section);
    seen.observe(section);
    section.querySelectorAll(".frame").forEach((frame) => frames.observe(frame));
  }

  document.querySelectorAll("main > section").forEach(begin);
  document.addEventListener("report:section", (event) => {
    const section = document.getElementById(event.detail);
    if (section) begin(section);
  });
  unfold();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("main details").forEach((fold) => { fold.open = true; });
    document.querySelectorAll("figure[data-key]").forEach((figure) => draw(figure));
  });
})();
