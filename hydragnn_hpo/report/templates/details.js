/* Opens what a name stands for: the atoms of a structure, or everything about a trial. Names are
   buttons in tables and points of charts. All text is set as text, never as markup. */
"use strict";
(() => {
  const report = window.report;
  const make = (tag, text, name) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  };

  function dialog(id, title) {
    const panel = make("dialog", undefined, "panel");
    panel.id = id;
    panel.setAttribute("aria-label", title);
    const close = make("button", "close", "close");
    close.type = "button";
    close.addEventListener("click", () => panel.close());
    const head = make("h2");
    const body = make("div", undefined, "body");
    panel.append(close, head, body);
    document.body.append(panel);
    return { panel, head, body };
  }

  /* -- structures --------------------------------------------------------------- */

  let shown = null;

  function openStructure(all, name) {
    shown ??= dialog("structure", "structure");
    const place = all.names.indexOf(name);
    shown.head.textContent = name;
    const canvas = make("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `atoms of ${name}: arrow keys turn, plus and minus zoom`);
    const facts = make("ul");
    facts.append(...all.facts[place].map((line) => make("li", line)));
    shown.body.replaceChildren(make("p", all.formulas[place], "formula"), canvas,
      make("p", "drag to turn, wheel or two fingers to zoom", "note"), facts);
    if (!shown.panel.open) shown.panel.show();
    window.drawStructure(canvas, window.structureOf(all, place));
    shown.panel.dataset.structure = name;
  }

  /* -- trials ------------------------------------------------------------------- */

  let trial = null;

  function pairs(rows) {
    const list = make("dl");
    for (const [key, value] of rows) {
      const rounded = Number.isInteger(value) ? value : Number(value).toPrecision(4);
      const text = typeof value === "number" ? Number(rounded).toLocaleString("en", { maximumFractionDigits: 12 }) : value;
      const pair = make("div");
      pair.append(make("dt", key), make("dd", text));
      list.append(pair);
    }
    return list;
  }

  function attemptsTable(rows) {
    const frame = make("div", undefined, "frame");
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const title of ["attempt", "to", "ranks", "placed", "took", "ended"]) head.append(make("th", title));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const cell of row) line.insertCell().textContent = cell;
    }
    frame.append(table);
    return frame;
  }

  function copyable(text) {
    const box = make("div", undefined, "code");
    const copy = make("button", "copy", "copy");
    copy.type = "button";
    const pre = make("pre");
    pre.tabIndex = 0;
    pre.append(make("code", text));
    box.append(copy, pre);
    return box;
  }

  function openTrial(all, name) {
    trial ??= dialog("trial", "trial");
    const given = all[name];
    trial.head.textContent = `Trial ${name}`;
    const parts = [pairs(given.facts), make("h3", "Configuration"),
      copyable(given.values.map(([key, value]) => `${key} = ${value}`).join("\n"))];
    let chart = null;
    if (given.epochs.length !== 0) {  // a list, or bytes of a longer one
      chart = make("div", undefined, "chart");
      chart.style.height = "220px";
      parts.push(make("h3", "Learning curve"), chart);
    }
    if (given.attempts.length) parts.push(make("h3", "Attempts"), attemptsTable(given.attempts));
    if (given.log) parts.push(make("h3", "Last lines of its log"), copyable(given.log));
    trial.body.replaceChildren(...parts);
    if (!trial.panel.open) trial.panel.showModal();
    trial.panel.scrollTop = 0;
    if (chart) {
      report.drawPlain(chart, {
        data: [{ type: "scatter", mode: "lines+markers", x: given.epochs, y: given.curve,
          line: { color: "c0", width: 2 }, hovertemplate: "epoch %{x}: %{y:.4g}<extra></extra>" }],
        layout: { xaxis: { title: { text: "epoch" } }, yaxis: { title: { text: "validation objective" } },
          margin: { t: 8 } },
      });
    }
  }

  /* -- clicks ------------------------------------------------------------------- */

  /* Open what a name stands for; say whether there was something to open. */
  async function open(name) {
    const { structures, trials } = await report.read();
    if (structures?.names.includes(name)) openStructure(structures, name);
    else if (trials && Object.hasOwn(trials, name)) openTrial(trials, name);
    else return false;
    return true;
  }
  report.open = open;

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.open");
    if (button && !(await open(button.textContent))) button.disabled = true;
    if (event.target === trial?.panel) trial.panel.close();  // on the backdrop
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shown?.panel.open) shown.panel.close();
  });
})();
